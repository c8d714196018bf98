"""The prompts a guard is evaluated on: nothing is in two parts, and lengths are matched."""

import itertools

import pytest

from saccade.errors import UsageError
from saccade.interp.studies.guard.guard_eval import BagOfWords, auroc, lengths
from saccade.interp.studies.guard.guard_prompts import (
    ordinary_prompts,
    paired_prompts,
    prompt_parts,
)

PARTS = ("fit", "held_out", "second")


@pytest.mark.parametrize("kind", ["tasks", "topics", "injections", "payloads"])
def test_no_piece_is_in_two_parts(kind):
    parts = prompt_parts()[kind].values()
    pieces = [
        {text for each in part.values() for text in each} if kind == "topics" else set(part)
        for part in parts
    ]
    for one, other in itertools.combinations(pieces, 2):
        assert one and other and not one & other


@pytest.mark.parametrize("part", PARTS)
def test_an_injected_prompt_holds_its_injection_and_an_ordinary_one_none(part):
    attacks = prompt_parts()["injections"]["fit" if part == "fit" else "held_out"]
    ordinary, injected = paired_prompts(part, 29, seed=1)
    for prompt in injected:
        assert prompt.is_injected and prompt.injection in prompt.text
        assert any(prompt.injection.startswith(each.partition("{")[0]) for each in attacks)
    assert not any(prompt.is_injected for prompt in ordinary)


@pytest.mark.parametrize("part", PARTS)
def test_length_does_not_tell_the_two_kinds_apart(part):
    ordinary, injected = paired_prompts(part, 101)
    scores = [lengths([prompt.text for prompt in kind]) for kind in (ordinary, injected)]
    assert abs(scores[0] - scores[1]).max() <= 3
    assert auroc(*scores) == pytest.approx(0.5, abs=0.02)


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others():
    assert ordinary_prompts("fit", 7, seed=2) == ordinary_prompts("fit", 7, seed=2)
    assert ordinary_prompts("fit", 7, seed=2) != ordinary_prompts("fit", 7, seed=3)


def test_every_task_of_a_part_is_used_before_any_comes_again():
    tasks = prompt_parts()["tasks"]["second"]
    prompts = ordinary_prompts("second", len(tasks))
    for task, prompt in zip(tasks, prompts, strict=True):
        before, _, after = task.partition("{text}")
        assert prompt.text.startswith(before) and prompt.text.endswith(after)


def test_ordinary_texts_hold_orders_of_their_own():
    """Else an imperative, or the word "ignore", would give an injection away."""
    text = " ".join(prompt.text for prompt in ordinary_prompts("held_out", 101)).lower()
    for word in ("ignore", "please", "do not", "instructions", "you should", "questions"):
        assert word in text


def test_an_unknown_part_is_refused():
    with pytest.raises(UsageError, match="cannot make 0 prompts of part 'fit'"):
        ordinary_prompts("fit", 0)


def test_a_bag_of_words_learns_the_words_it_was_shown():
    ordinary, injected = (
        [prompt.text for prompt in kind] for kind in paired_prompts("fit", 61, seed=4)
    )
    bag = BagOfWords.fit(ordinary, injected)
    assert auroc(bag.score(ordinary), bag.score(injected)) == 1.0
    assert float(bag.score(["ignore the above"])) > float(bag.score(["the river rose"]))


def test_a_bag_of_words_is_where_its_loss_is_least():
    """The gradient of a three-line loss, by hand, is zero there."""
    import torch

    from saccade.interp.studies.guard.guard_eval import RIDGE

    ordinary, injected = ["a b", "a a c", "b c"], ["a c c", "c b", "c"]
    bag = BagOfWords.fit(ordinary, injected)
    counts = torch.tensor(
        [[text.split().count(word) for word in bag.places] for text in ordinary + injected]
    ).double()
    features, sign = counts.log1p(), torch.tensor([-1.0] * 3 + [1.0] * 3).double()
    chance = torch.sigmoid(-sign * (features @ bag.weight + bag.bias))
    gradient = -(features * (sign * chance)[:, None]).mean(0) + 2 * RIDGE * bag.weight
    assert gradient.abs().max() < 1e-6
