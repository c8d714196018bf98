"""Worked by hand, and against matching one bracket after the other."""

import random

import pytest

from saccade.errors import UsageError
from saccade.zoo.metrics.sequence_metrics import Bracket, score_brackets


def drawn(n, seed):
    draw = random.Random(seed)
    return [
        [
            Bracket(draw.choice(["NP", "VP", "PP"]), *sorted(draw.sample(range(5), 2)))
            for _ in range(draw.randint(1, 9))
        ]
        for _ in range(n)
    ]


def test_it_agrees_with_matching_one_by_one():
    gold, guesses = drawn(31, 1), drawn(31, 2)
    matched = 0
    for right, guess in zip(gold, guesses, strict=True):
        free = list(right)
        for bracket in guess:
            if bracket in free:
                free.remove(bracket)
                matched += 1
    n_gold, n_guess = (sum(map(len, side)) for side in (gold, guesses))
    score = score_brackets(gold, guesses)
    assert score.precision == pytest.approx(100 * matched / n_guess)
    assert score.recall == pytest.approx(100 * matched / n_gold)
    p, r = score.precision, score.recall
    assert score.f1 == pytest.approx(2 * p * r / (p + r))
    assert score.n_sentences == 31


def test_a_bracket_said_twice_is_right_only_as_often_as_it_is_there():
    once, twice = [Bracket("NP", 0, 2)], [Bracket("NP", 0, 2)] * 2
    assert score_brackets([once], [twice]).precision == 50
    assert score_brackets([twice], [twice])[:4] == (100, 100, 100, 100)


def test_complete_sentences_are_counted():
    gold = [[Bracket("S", 0, 3)], [Bracket("S", 0, 2), Bracket("NP", 0, 1)]]
    assert score_brackets(gold, [gold[0], [Bracket("S", 0, 2)]]).complete == 50


def test_particles_and_adverbs_are_one_as_in_evalb():
    assert score_brackets([[Bracket("PRT", 1, 2)]], [[Bracket("ADVP", 1, 2)]]).f1 == 100


def test_nothing_predicted_scores_nothing():
    assert score_brackets([[Bracket("S", 0, 3)]], [[]])[:4] == (0, 0, 0, 0)


def test_lists_that_do_not_belong_together_are_refused():
    with pytest.raises(UsageError, match="1 predicted trees and 2 gold trees"):
        score_brackets([[], []], [[]])
