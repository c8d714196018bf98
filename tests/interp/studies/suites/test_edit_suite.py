"""The suite of memory injection: spans, alignment, cross-validation and a whole run."""

from __future__ import annotations

import csv

import pytest
import torch

from saccade.errors import TaskError
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import intervene
from saccade.interp.studies.edit.injection import Span, aligned_injection, span_of
from saccade.interp.studies.suites import edit_suite
from saccade.interp.studies.suites.edit_suite import EditSuite, Setting, crossed, evaluate_methods
from saccade.interp.studies.suites.memories import Trial, folds_of
from saccade.interp.studies.suites.suites import evaluate_suite

NAMES = ("Lily", "Tom", "Mia", "Ben", "Sue", "Max", "Zoe", "Sam", "Lucy", "Leo", "Amy", "Tim")
ITEMS = [
    {
        "explicit_sentence": f"{name} went to the",
        "obscure_sentence": f"The little {'girl' if at % 2 == 0 else 'boy'} went to the",
        "explicit_entity": name,
        "obscure_entity": f"the little {'girl' if at % 2 == 0 else 'boy'}",
        "answer": ("park", "beach", "store")[at % 3],
    }
    for at, name in enumerate(NAMES)
]


@pytest.fixture(autouse=True)
def _few_settings(monkeypatch):
    monkeypatch.setattr(edit_suite, "MAGNITUDES", (0.3,))
    monkeypatch.setattr(edit_suite, "STRENGTHS", (0.5, 1.0))


def test_a_span_has_the_tokens_of_its_piece(stories):
    text = "One day, the little girl went to the park"
    at = span_of(stories, text, "The little girl ")
    assert at is not None
    ids = stories.encode(text)[0]
    assert "".join(stories.tokens(ids[list(at)])).strip() == "the little girl"
    first = span_of(stories, text, "One day")
    assert "".join(stories.tokens(ids[list(first)])).strip() == "One day"
    assert span_of(stories, text, "a boat") is None


def span(stories, text: str, piece: str) -> Span:
    streams = capture(stories, stories.encode(text), residual=True).residual
    at = span_of(stories, text, piece)
    assert at is not None
    return Span({layer: each[0] for layer, each in streams.items()}, at)


def test_states_of_a_name_at_the_end_after_the_last_layer_are_the_other_prompt(stories):
    obscure, explicit = "He saw the little girl", "He saw Lily"
    last = stories.layers[-1].index
    here, there = span(stories, obscure, "the little girl"), span(stories, explicit, "Lily")
    change = aligned_injection(here, there, layer=last, strength=1.0)
    assert change.positions is not None and len(change.positions) == len(there.positions)
    with intervene(stories, change):
        found = stories.hf(stories.encode(obscure)).logits[0, -1]
    torch.testing.assert_close(
        found, stories.hf(stories.encode(explicit)).logits[0, -1], atol=1e-3, rtol=1e-3
    )


def test_half_a_state_is_between_both(stories):
    here, there = span(stories, "The girl saw", "The girl"), span(stories, "The dog saw", "The dog")
    change = aligned_injection(here, there, layer=2, strength=0.5)
    for at, vector in zip(change.positions or (), change.vector, strict=True):
        own, other = here.streams[2][at], there.streams[2][at]
        torch.testing.assert_close(own + change.strength * vector, (own + other) / 2)


def test_the_setting_of_an_item_is_chosen_by_loops_over_the_other_folds():
    chance = torch.Generator().manual_seed(2)
    ratio = 2 * torch.randn(4, 11, generator=chance).double()
    fold = torch.arange(11) % 3
    wanted = torch.arange(11) != 4
    found = crossed(ratio, wanted, fold)
    for item in range(11):
        others = [i for i in range(11) if wanted[i] and fold[i] != fold[item]]
        means = [sum(min(max(float(row[i]), -1), 1) for i in others) / len(others) for row in ratio]
        assert int(found[item]) == means.index(max(means))


def test_an_item_does_not_choose_its_own_setting():
    """The best setting of a fold's own items is never chosen for them."""
    ratio = torch.zeros(2, 10)
    fold = torch.arange(10) % 5
    ratio[1, fold == 0] = 1.0  # good for the first fold alone, bad for all others
    ratio[1, fold != 0] = -1.0
    assert crossed(ratio, torch.ones(10).bool(), fold).tolist() == [0] * 10


def test_items_of_one_name_are_in_one_fold():
    names = ["a", "b", "a", "c", "d", "e", "b"]
    fold = folds_of(names, seed=1)
    assert fold[0] == fold[2] and fold[1] == fold[6] and len(fold.unique()) == 5


def test_answers_have_the_probability_of_plain_runs_at_the_end_and_whole(stories):
    trial = Trial(stories, ITEMS[:3], seed=0)
    for at, item in enumerate(ITEMS[:3]):
        for text, found in (
            (item["explicit_sentence"], trial.named),
            (item["obscure_sentence"], trial.before),
        ):
            logits = stories.hf(stories.encode(text)).logits[0, -1]
            token = trial.prompts[at].answer
            assert float(found[at]) == pytest.approx(float(logits.log_softmax(-1)[token]), abs=1e-4)
    method = edit_suite.methods_of(trial)[0]
    setting = Setting(stories.layers[2].index, 0.3)
    whole, end = (
        trial.after(lambda i: method.inject(setting, i, i), at_end=at_end)
        for at_end in (False, True)
    )
    torch.testing.assert_close(whole, end, atol=1e-4, rtol=1e-4)
    assert not torch.equal(whole, trial.before)


def test_another_items_memory_is_never_the_same_name(stories):
    trial = Trial(stories, [*ITEMS[:4], ITEMS[0]], seed=0)
    names = [*NAMES[:4], NAMES[0]]
    assert all(names[other] != names[at] for at, other in enumerate(trial.other))


def test_injecting_the_own_state_changes_nothing(stories):
    same = [{**item, "obscure_sentence": item["explicit_sentence"]} for item in ITEMS]
    same = [{**item, "obscure_entity": item["explicit_entity"]} for item in same]
    trial = Trial(stories, same, seed=0)
    found = evaluate_methods(trial, {"all items": trial.rank >= 0})
    ours = found.log_ratio["all items", "states of the name on those of the description"]
    torch.testing.assert_close(ours[""], torch.zeros(12).double(), atol=1e-5, rtol=0)
    assert ours[", memory of another item"].abs().max() > 1e-4


def write_csv(folder, items) -> None:
    (folder / "memory-injections").mkdir()
    path = folder / "memory-injections" / "handwritten_obscure_explicit_data.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ITEMS[0].keys())
        writer.writeheader()
        writer.writerows(items)


def test_the_suite_says_how_many_answers_the_model_knows(stories, tmp_path):
    write_csv(tmp_path, ITEMS)
    found = evaluate_suite(stories, "edit", data=tmp_path)
    assert any("of 12 answers" in note and "5 likeliest" in note for note in found.notes)
    every = "memory-injections, all items"
    assert {row.metric for row in found.rows if row.data == every} == {
        *("ratio of means", "geometric mean", "share raised")
    }
    assert all(row.low <= row.high for row in found.rows)
    few = [name for name in found.left_out if "likeliest" in name]
    assert len(few) + len({row.data for row in found.rows}) == 3


def test_a_broken_item_is_named_by_its_number(tmp_path):
    write_csv(tmp_path, [*ITEMS[:2], {**ITEMS[2], "answer": " "}])
    with pytest.raises(TaskError, match="item 3 has no answer"):
        EditSuite().read(tmp_path / "memory-injections")
    with pytest.raises(TaskError, match="cannot read"):
        EditSuite().read(tmp_path)
