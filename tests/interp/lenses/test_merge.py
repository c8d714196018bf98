"""Shards fitted apart, judged by one fit over the text of all."""

from dataclasses import replace

import pytest
import torch

from saccade.distributed import Processes
from saccade.errors import LensError, UsageError
from saccade.interp.lenses import gather
from saccade.interp.lenses.batches import CorpusBatches
from saccade.interp.lenses.fit import fit_lenses, fit_on, merge_lenses
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.lens_set import load_lenses

ROWS = 3


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))


def fitted(model, corpus, **settings):
    batches = CorpusBatches(model, corpus, ROWS)
    return fit_on(model, batches, FitConfig(rows=ROWS, **settings), processes=Processes())


def write_parts(model, told, folder, sizes):
    """Files of several stories each."""
    texts = model.tokenizer.batch_decode(told, skip_special_tokens=True)
    files = []
    for number, size in enumerate(sizes):
        (file := folder / f"{number}.txt").write_text("\n".join(texts[:size]), encoding="utf-8")
        files.append(str(file))
        del texts[:size]
    return files


def assert_same_lenses(found, expected, size=1e-5):
    """To the tolerance relative to the largest number of each tensor."""
    for layer, lens in expected.by_layer.items():
        for name, value in lens.state_dict().items():
            apart = (found.by_layer[layer].state_dict()[name] - value).abs().max()
            assert float(apart) <= size * float(value.abs().max()), (layer, name)


def test_shards_fitted_apart_merge_to_one_fit_over_all(stories, told, tmp_path, monkeypatch):
    # Sizes such that windows have other company, and other batches, in a shard than in the whole;
    # together more held-out positions than are kept.
    monkeypatch.setattr(gather, "HELD_OUT_POSITIONS", 101)
    files = write_parts(stories, told, tmp_path, (83, 59, 69))
    config = FitConfig(tokens=10**6, window=23, rows=ROWS)
    expected = fit_lenses(stories, files, config)
    parts = [fit_lenses(stories, file, config) for file in files]
    merged = merge_lenses(parts)
    for name, total in expected.statistics.sums.items():
        apart = (merged.statistics.sums[name] - total).abs().max()
        assert float(apart) <= 1e-6 * float(total.abs().max()), name
    assert torch.equal(merged.held_out.priority, expected.held_out.priority)
    assert len(merged.held_out) < sum(len(part.held_out) for part in parts)
    assert_same_lenses(merged, expected)
    assert merged.provenance.corpus == " + ".join(files)
    assert merged.provenance.n_tokens == expected.provenance.n_tokens
    # In two steps, and in another order.
    again = merge_lenses([parts[2], merge_lenses(parts[:2])])
    assert_same_lenses(again, expected)
    with pytest.raises(LensError, match="cannot merge lenses of one text with itself"):
        merge_lenses([merged, parts[1]])


def test_one_text_is_not_counted_twice(stories, told, corpus_of):
    one = fitted(stories, corpus_of(told[:32], "one.txt"))
    copy = fitted(stories, corpus_of(told[:32], "copy.txt"))
    with pytest.raises(LensError, match=r"one\.txt and copy\.txt have the same tokens") as raised:
        merge_lenses([one, copy])
    assert raised.value.hint == "name each shard once"


def test_lenses_may_be_merged_into_one_of_the_shards(stories, told, corpus_of, tmp_path):
    for name, windows in (("a", told[:32]), ("b", told[32:64])):
        fitted(stories, corpus_of(windows, name)).save(tmp_path / name)
    parts = [load_lenses(tmp_path / name, stories) for name in "ab"]
    merged = merge_lenses(parts)
    merged.save(tmp_path / "a")
    found = load_lenses(tmp_path / "a", stories)
    assert found.provenance.corpus == "a + b"
    assert_same_lenses(found, merged, size=0.0)


def test_what_cannot_be_merged_is_refused(stories, told, corpus_of):
    one = fitted(stories, corpus_of(told[:16]))
    with pytest.raises(UsageError, match="at least two sets of lenses, got 1"):
        merge_lenses([one])
    polished = fitted(stories, corpus_of(told[:16]), method="polish", steps=1)
    with pytest.raises(LensError, match="fitted by polish on stories contain no sums to merge"):
        merge_lenses([one, polished])


def test_lenses_of_two_models_of_one_shape_are_not_merged(stories, told, corpus_of):
    one = fitted(stories, corpus_of(told[:16]))
    other = replace(
        one, provenance=replace(one.provenance, model="a cousin", model_fingerprint="f" * 16)
    )
    with pytest.raises(LensError, match=r"cannot merge lenses of a cousin \(ffffffffffffffff\)"):
        merge_lenses([one, other])
