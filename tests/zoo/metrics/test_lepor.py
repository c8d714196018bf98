"""Worked by hand from the paper's equations."""

import math

import pytest

from saccade.zoo.metrics.translation_metrics import align_nearest, lepor


def test_a_copy_scores_one():
    assert lepor(["the cat sat on the mat"], ["the cat sat on the mat"]) == (1, 1, 1, 1)


def test_a_sentence_scores_as_the_equations_say():
    # Of 3 words 2 are matched: "cat" from place 1/3 to 2/4, "sat" from 3/3 to 3/4.
    result = lepor(["cat quickly sat"], ["the cat sat down"])
    assert result.length_penalty == pytest.approx(math.exp(1 - 4 / 3))
    assert result.position_penalty == pytest.approx(math.exp(-(1 / 6 + 1 / 4) / 3))
    assert result.harmonic == pytest.approx(10 / (9 / (2 / 4) + 1 / (2 / 3)))
    factors = (result.length_penalty, result.position_penalty, result.harmonic)
    assert result.score == pytest.approx(math.prod(factors))


def test_too_long_is_punished_as_too_short_is():
    short, long = lepor(["a b"], ["a b c d"]), lepor(["a b c d"], ["a b"])
    assert short.length_penalty == long.length_penalty == pytest.approx(math.exp(-1))


def test_recall_counts_nine_times_unless_told_otherwise():
    even = lepor(["a b"], ["a b c d"], recall=1.0, precision=1.0)
    assert even.harmonic == pytest.approx(2 / (1 / 0.5 + 1 / 1))


def test_of_equal_words_the_one_among_equal_neighbours_is_taken():
    answer = ["on", "the", "mat", "sat", "the", "cat"]
    reference = ["the", "cat", "sat", "on", "the", "mat"]
    assert align_nearest(answer, reference) == {0: 3, 1: 4, 2: 5, 3: 2, 4: 0, 5: 1}


def test_nothing_in_common_scores_nothing():
    assert lepor(["x"], ["a"]).score == 0
    assert lepor(["..."], ["a"]).score == 0


def test_the_best_reference_counts_and_sentences_are_averaged():
    assert lepor(["a b", "x"], [["q", "a b"], "y"]).score == 0.5
