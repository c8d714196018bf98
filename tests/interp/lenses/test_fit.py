"""Fitting as a whole: the same lens twice, no data needed, nothing lost, nothing peeked at."""

import errno
import hashlib
from dataclasses import replace

import pytest
import torch

from saccade.distributed import Processes
from saccade.errors import CorpusError, StoreError, UsageError
from saccade.interp.lenses.batches import CorpusBatches, SelfBatches, kept_positions
from saccade.interp.lenses.fit import fit_lenses, open_batches
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.gather import gather
from saccade.store.atomic import cache_dir
from saccade.store.folder import write_tensors

ROWS = 15


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))


def tensors(lenses):
    named = {"baseline": lenses.baseline}
    for layer, lens in lenses.by_layer.items():
        named |= {f"{layer}.{name}": value for name, value in lens.state_dict().items()}
    return named


def assert_same(one, other):
    for mine, theirs in ((tensors(one), tensors(other)), (one.quality, other.quality)):
        assert mine.keys() == theirs.keys()
    assert all(torch.equal(value, tensors(other)[name]) for name, value in tensors(one).items())
    assert one.quality == other.quality


@pytest.mark.parametrize(
    "settings",
    [{}, {"method": "polish", "steps": 3}, {"kind": "tuned"}, {"method": "train", "steps": 2}],
    ids=["closed-form", "polish", "tuned", "train"],
)
def test_the_same_fit_twice_gives_the_same_lenses(stories, story_file, settings):
    config = FitConfig(tokens=1100, window=31, rows=7, **settings)
    one, other = (fit_lenses(stories, story_file, config) for _ in range(2))
    assert_same(one, other)
    assert one.provenance == other.provenance
    assert not list((cache_dir() / "unfinished").iterdir())  # done: nothing is left to go on with


def test_every_lens_comes_with_its_figures_and_its_origin(stories, story_file):
    lenses = fit_lenses(stories, story_file, FitConfig(tokens=1100, window=31))
    assert len(lenses.sites) == stories.n_heads == 40
    for site in lenses.sites:
        figures = lenses.quality_of(*site)
        assert 0 < figures["kl"] < 6 and -1 < figures["gain"] < 3
    provenance = lenses.provenance
    assert provenance.corpus == str(story_file) and provenance.n_tokens == 1100 // 30 * 30
    assert provenance.prefix == ("<s>",)  # one of the 31 tokens of a window
    assert provenance.model_fingerprint == stories.fingerprint
    assert provenance.settings["window"] == 31 and set(provenance.versions) >= {
        "torch",
        "transformers",
    }


def test_no_data_is_needed_where_the_model_writes_its_own(stories):
    stages = []
    config = FitConfig(tokens=1700)
    lenses = fit_lenses(stories, config=config, progress=lambda *each: stages.append(each))
    assert (
        lenses.provenance.corpus == "self" and lenses.provenance.n_tokens == 1728
    )  # whole rows of 96
    assert stages[-1] == ("reading", 1, 1)
    gains = [lenses.quality_of(*site)["gain"] for site in lenses.sites]
    assert sum(gains) / len(gains) > 0.1


def test_sampled_text_is_told_apart_by_its_seed(stories):
    one, other = (SelfBatches(stories, 3, 3, 11, seed=seed) for seed in (0, 1))
    assert one.fingerprint != other.fingerprint
    assert not torch.equal(one.read(0).ids, other.read(0).ids)


def test_held_out_rows_are_never_in_the_sums(stories, corpus):
    batches = CorpusBatches(stories, corpus, ROWS)
    is_held_out = batches.held_out_rows()
    assert is_held_out.nonzero()[:, 0].tolist() == list(range(141, 150))  # the last sixteenth
    found = gather(stories, batches, processes=Processes())
    changed = corpus.windows.clone()
    changed[is_held_out] = 7
    others = CorpusBatches(stories, replace(corpus, windows=changed), ROWS)
    other = gather(stories, others, processes=Processes())
    sums, same = found.statistics.sums, other.statistics.sums
    assert all(torch.equal(sums[name], same[name]) for name in sums)
    fitted = corpus.windows[~is_held_out]
    places = kept_positions(stories, fitted)
    assert places.shape[1] == 30  # every other of 61 positions
    assert found.statistics.n == int(stories.is_text(fitted).gather(1, places).sum())
    assert not torch.equal(found.sample.final, other.sample.final)


@pytest.mark.parametrize(("n_rows", "expected"), [(2, [1]), (16, [15]), (33, [15, 31])])
def test_of_sampled_text_every_sixteenth_row_is_held_out(stories, n_rows, expected):
    batches = SelfBatches(stories, n_rows, 5, 11, seed=0)
    assert batches.held_out_rows().nonzero()[:, 0].tolist() == expected
    assert len(batches) == -(-n_rows // 5)


def test_a_text_of_one_window_cannot_be_fitted_on_and_chosen_with(stories, tmp_path):
    (tmp_path / "short.txt").write_text("Once upon a time there was a little girl. " * 3)
    with pytest.raises(UsageError, match="has one window of 23 tokens, and two are needed"):
        fit_lenses(stories, tmp_path / "short.txt", FitConfig(window=23, tokens=46))
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(CorpusError, match="contains no text"):
        fit_lenses(stories, tmp_path / "empty.txt", FitConfig(window=31, tokens=62))


def test_tuned_lenses_are_solved_for_the_asked_layers_only(stories, story_file):
    config = FitConfig(kind="tuned", layers=(1, 3), tokens=700, window=31)
    assert set(fit_lenses(stories, story_file, config).by_layer) == {1, 3}


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_a_full_disk_leaves_the_old_lenses_and_the_work_that_was_done(
    stories, story_file, tmp_path, monkeypatch
):
    out = tmp_path / "lens"
    config = FitConfig(tokens=1100, window=31)
    old = fit_lenses(stories, story_file, FitConfig(tokens=700, window=31), save_to=out)
    before = digest(out)

    def full(path, tensors):
        if path.parent.name == out.name:  # the checkpoint is on another disk
            raise OSError(errno.ENOSPC, "No space left on device")
        write_tensors(path, tensors)

    reads = []
    read = CorpusBatches.read
    monkeypatch.setattr(CorpusBatches, "read", lambda *each: reads.append(each) or read(*each))
    with monkeypatch.context() as patched:
        patched.setattr("saccade.store.folder.write_tensors", full)
        with pytest.raises(StoreError, match=r"could not write .*lens: no space left on device"):
            fit_lenses(stories, story_file, config, save_to=out)
    assert digest(out) == before
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["lens"]
    n_batches = len(reads)
    new = fit_lenses(stories, story_file, config, save_to=out)
    assert len(reads) == n_batches  # the text was not read again
    assert digest(out) != before and not torch.equal(new.baseline, old.baseline)


def test_a_text_of_two_windows_is_fitted_on_one_and_chosen_with_the_other(stories, story_file):
    batches = open_batches(stories, story_file, FitConfig(window=23, tokens=46))
    assert batches.held_out_rows().tolist() == [False, True]
    assert (
        fit_lenses(stories, story_file, FitConfig(window=23, tokens=46)).provenance.n_tokens == 44
    )


def test_a_second_pass_over_the_text_is_reported_batch_by_batch(stories, story_file):
    stages = []
    config = FitConfig(kind="tuned", tokens=1100, window=31, rows=7)
    fit_lenses(stories, story_file, config, progress=lambda *each: stages.append(each))
    n_windows = 1100 // 30
    n_fitted = n_windows - n_windows // 16  # the others are held out
    n_batches = -(-n_fitted // 7)
    told = [each for each in stages if each[0] == "reading the residual stream"]
    assert told == [(told[0][0], count, n_batches) for count in range(1, n_batches + 1)]
