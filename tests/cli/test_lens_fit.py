"""`saccade lens fit`: lenses in a folder, figures on stdout, mistakes in one line."""

import hashlib
import json
import re
from typing import get_args, get_type_hints

import pytest
import torch

from saccade.interp.lenses.lens_set import load_lenses


@pytest.fixture(scope="module")
def text(story, tmp_path_factory):
    return story(tmp_path_factory.mktemp("text") / "story.txt", sentences=150)


@pytest.fixture
def fit(saccade, stories, text):
    def run(*options, corpus=text):
        given = ["--model", stories.name, "--window", 31, "--tokens", 1500]
        return saccade("lens", "fit", *given, "--corpus", corpus, *options)

    return run


def digest(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_lenses_are_put_where_they_are_asked_for_and_described(fit, stories, text, tmp_path):
    code, out, err = fit("--out", tmp_path / "lens")
    first, second, third, last = out.splitlines()
    assert code == 0
    assert first.startswith(f"40 head lenses for {stories.name}, by closed-form, from 1,500 tokens")
    assert second.startswith("held-out KL to the model, mean over heads: ")
    assert third.startswith("most is heard from heads ") and third.count("(") == 5
    assert last == f"in {tmp_path / 'lens'}"
    assert "reading: 7/7" in err
    assert load_lenses(tmp_path / "lens", stories).provenance.corpus == str(text)


def test_json_is_all_that_is_printed_and_the_default_place_is_found(fit, saccade, stories):
    code, out, _ = fit("--json", "--method", "polish", "--steps", 2, "--seed", 3)
    found = json.loads(out)
    assert code == 0
    assert found["provenance"]["method"] == "polish" and found["provenance"]["seed"] == 3
    assert found["provenance"]["settings"]["steps"] == 2
    assert len(found["quality"]["kl"]["4"]) == 8
    code, out, _ = saccade("read", "One day, Lily saw", "--model", stories.name, "--json")
    assert code == 0 and len(json.loads(out)["heads"]) == 8


def test_several_texts_and_layers_can_be_given(fit, story, stories, tmp_path):
    other = story(tmp_path / "other.txt", sentences=90, seed=1)
    options = ["--method", "train", "--kind", "dense", "--objective", "input", "--steps", 1]
    layers = ["--layers", 1, "--layers", 3, "--over", "layer", "--positions", "last"]
    code, out, _ = fit("--corpus", other, *options, *layers, "--out", tmp_path / "lens")
    assert code == 0, out
    lenses = load_lenses(tmp_path / "lens", stories)
    assert list(lenses.by_layer) == [1, 3] and lenses.provenance.objective == "input"
    assert str(other) in lenses.provenance.corpus
    assert out.startswith("16 dense lenses for")


def test_the_help_names_the_kinds_and_methods_that_there_are(saccade):
    """It is written without torch, so that a test has to hold it to the classes."""
    from saccade.cli.options import field_help
    from saccade.interp.lenses.fit_config import FitConfig
    from saccade.interp.lenses.lens import fitted_kinds, lens_kind

    said = field_help(FitConfig)
    kinds = said["kind"].removeprefix("Lens kind: ").removesuffix(", or your own.")
    assert sorted(kinds.split(", ")) == list(fitted_kinds())
    methods = {name for kind in fitted_kinds() for name in lens_kind(kind).methods()}
    assert methods == set(get_args(get_type_hints(FitConfig)["method"]))
    assert methods == set(re.findall(r"([a-z-]+) \(", said["method"]))
    code, out, _ = saccade("lens", "fit", "--help")
    shown = re.sub(r"[\s│]+", " ", out)
    assert code == 0 and kinds in shown and all(name in shown for name in methods)


def test_lenses_without_figures_are_described_without_them(fit, tmp_path):
    code, out, _ = fit("--kind", "tuned", "--out", tmp_path / "lens")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["5", "in"]


@pytest.mark.parametrize(
    ("options", "code", "tokens"),
    [
        (["--corpus", "nowhere.txt"], 1, "no such file: nowhere.txt"),
        (["--model", "./nowhere"], 1, "nowhere"),
        (["--kind", "densee"], 2, "no lens kind 'densee'"),
        (["--kind", "dense"], 2, "a dense lens cannot be fitted by closed-form; use train"),
        (["--objective", "k"], 2, "no objective 'k'"),
        (["--method", "polished"], 2, "'polished' is not one of"),
        (["--window", "9999"], 2, "tokens: 1500 is less than 19998"),
        (["--window", "600"], 2, "longer than the model's context of 512"),
        (["--rows", "0"], 2, "rows: 0 is less than 1"),
        (["--layers", "7", "--method", "train"], 2, "no layer 7"),
        (["--plugin", "nowhere.py"], 2, "no plugin at nowhere.py"),
        (["--tokens", "many"], 2, "Invalid value for '--tokens'"),
    ],
)
def test_mistakes_are_told_in_a_line_and_nothing_is_written(
    fit, told_in_a_line, tmp_path, options, code, tokens
):
    found, out, err = fit(*options, "--out", tmp_path / "lens")
    assert (found, out) == (code, "")
    assert tokens in told_in_a_line(err)
    assert not (tmp_path / "lens").exists()


def test_a_broken_plugin_is_told_with_its_error(fit, told_in_a_line, tmp_path):
    (tmp_path / "mine.py").write_text("1 / 0")
    code, _, err = fit("--plugin", tmp_path / "mine.py")
    assert code == 2
    assert "mine.py fails: ZeroDivisionError: division by zero" in told_in_a_line(err)


def test_a_folder_of_something_else_is_not_replaced(fit, told_in_a_line, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    code, out, err = fit("--out", tmp_path / "home")
    assert (code, out) == (1, "")
    assert "holds files that saccade did not write (letter.txt)" in told_in_a_line(err)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_an_interrupted_fit_leaves_the_old_lenses_and_goes_on(fit, stories, tmp_path, monkeypatch):
    from saccade.interp.lenses import batches
    from saccade.interp.lenses import gather as checkpoint

    out = tmp_path / "lens"
    assert fit("--out", out, "--seed", 1)[0] == 0
    before = digest(out)
    read, reads = batches.CorpusBatches.read, []

    def interrupted(self, index):
        reads.append(index)
        if len(reads) == 3:
            raise KeyboardInterrupt
        return read(self, index)

    monkeypatch.setattr(checkpoint, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "PAUSE_OVER_WRITING", 0)
    monkeypatch.setattr(batches.CorpusBatches, "read", interrupted)
    code, printed, err = fit("--out", out, "--seed", 2)
    assert (code, printed) == (130, "") and err.endswith("interrupted\n")
    assert digest(out) == before
    assert fit("--out", out, "--seed", 2)[0] == 0
    assert reads == [0, 1, 2, 2, 3, 4, 5, 6]
    assert load_lenses(out, stories).provenance.seed == 2


def test_without_a_corpus_the_model_writes_its_own(saccade, stories, tmp_path, monkeypatch):
    monkeypatch.setattr("saccade.interp.lenses.fit.WINDOW", 24)
    given = ["--model", stories.name, "--tokens", 700, "--out", tmp_path / "lens"]
    code, out, _ = saccade("lens", "fit", *given)
    assert code == 0 and "from 720 tokens of self" in out
    assert torch.isfinite(load_lenses(tmp_path / "lens", stories).baseline).all()
