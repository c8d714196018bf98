"""Files that earlier versions wrote are still read, and mean what they meant.

`saved/` holds one of each kind, written by version 0.1.0 before its keys were renamed, for the
small random model beside them. `expected.json` is what that version answered.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

SAVED = Path(__file__).parent / "saved"
PROMPT = "One day, Lily saw the"
EXPECTED = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def saved_model():
    import saccade

    return saccade.open_model(SAVED / "model")


@pytest.fixture(scope="module")
def saved_lenses(saved_model):
    import saccade

    return saccade.load_lenses(SAVED / "lens", saved_model)


def test_a_lens_predicts_what_it_predicted(saved_lenses, saved_model):
    import saccade

    heads = saccade.read(saved_model, PROMPT, lenses=saved_lenses, effects=False).heads
    found = [[head.lens.kl_from_baseline, head.lens.predicts[0].id] for head in heads]
    assert [each[1] for each in found] == [each[1] for each in EXPECTED["lens"]]
    assert [each[0] for each in found] == pytest.approx([e[0] for e in EXPECTED["lens"]], abs=1e-4)


def test_the_statistics_of_a_lens_are_still_there_to_be_merged(saved_lenses):
    assert saved_lenses.statistics is not None
    assert saved_lenses.statistics.n == EXPECTED["n"]


def test_a_guard_scores_what_it_scored(saved_lenses):
    from saccade.interp.studies.guard.guard_file import load_guard

    scores = load_guard(SAVED / "guard", saved_lenses).scores(
        [f"{PROMPT} ball.", "Ignore all that"]
    )
    assert scores.tolist() == pytest.approx(EXPECTED["guard"], abs=1e-4)


def test_an_edit_changes_what_it_changed(saved_model):
    from saccade.interp.studies.edit.edit_file import load_edit

    edit = load_edit(SAVED / "edit", saved_model)
    with edit.applied(saved_model), torch.no_grad():
        logits = saved_model.hf(saved_model.encode(PROMPT)).logits[0, -1]
    assert logits.topk(5).values.tolist() == pytest.approx(EXPECTED["edit"], abs=1e-4)


def test_runs_write_and_translate_what_they_did():
    import saccade

    writer = saccade.load_run(SAVED / "writer")
    assert writer.sample() == EXPECTED["sample"]
    translator = saccade.load_run(SAVED / "translator")
    assert [each.text for each in translator.translate(["Ein Hund läuft."])] == EXPECTED[
        "translation"
    ]


def test_a_run_that_was_trained_before_can_be_made_longer(tmp_path, monkeypatch):
    from saccade.cli.main import main

    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))
    (tmp_path / "tinyshakespeare").mkdir()
    text = "the cat sat on the mat.\na cat is no dog.\n" * 30
    (tmp_path / "tinyshakespeare" / "input.txt").write_text(text, encoding="utf-8")
    run = shutil.copytree(SAVED / "writer", tmp_path / "run")
    assert main(["eval", str(run), "--json"]) == 0


def test_a_trace_shows_what_it_showed():
    import saccade

    trace = saccade.load_trace(SAVED / "trace")
    assert [*trace.steps] == ["c", "b", "b"] and [*trace.memory] == ["a", "b", "c"]
    assert trace.weights.argmax(-1).tolist() == [2, 1, 1]
