"""Against every subsequence there is, and matches counted one by one."""

import random
from itertools import combinations

import pytest

from saccade.zoo.metrics.summary_metrics import longest_common, rouge


def by_enumeration(first, second):
    """The longest of all subsequences of one that is a subsequence of the other."""
    for n in range(len(first), 0, -1):
        for chosen in combinations(first, n):
            rest = iter(second)
            if all(word in rest for word in chosen):
                return n
    return 0


def test_the_longest_common_subsequence_is_the_longest_there_is():
    draw = random.Random(3)
    for _ in range(60):
        first, second = (draw.choices("abcd", k=draw.randint(0, 7)) for _ in range(2))
        assert longest_common(first, second) == by_enumeration(first, second)


def by_table(first, second):
    row = [0] * (len(second) + 1)
    for word in first:
        corner = 0
        for j, other in enumerate(second, start=1):
            above = row[j]
            row[j] = corner + 1 if word == other else max(above, row[j - 1])
            corner = above
    return row[-1]


def test_it_is_that_of_the_table_in_texts_of_many_words():
    draw = random.Random(5)
    words = ["the", "th", "cat", "t", "a" * 70, "é"]
    for _ in range(97):
        # Beyond 64 words they no longer fit into one machine word.
        first, second = (draw.choices(words, k=draw.randrange(131)) for _ in range(2))
        assert longest_common(first, second) == by_table(first, second)


def test_a_sentence_scores_as_counted_by_hand():
    # 4 of 5 words, 2 of 4 pairs ("police killed", "the gunman"), "police killed gunman".
    result = rouge(["police killed the gunman today"], ["police killed a man the gunman"])
    assert result.rouge1[1:] == (4 / 5, 4 / 6)
    assert result.rouge2[1:] == (2 / 4, 2 / 5)
    assert result.rouge_l[1:] == (4 / 5, 4 / 6)
    p, r = result.rouge1[1:]
    assert result.rouge1.f1 == pytest.approx(2 * p * r / (p + r))


def test_a_repeated_word_counts_as_often_as_the_reference_has_it():
    assert rouge(["the the the"], ["the cat"]).rouge1[1:] == (1 / 3, 1 / 2)


def test_the_best_reference_counts_and_sentences_are_averaged():
    result = rouge(["a b", "x"], [["q", "A b."], "y"])
    assert result.rouge1 == result.rouge_l == (0.5, 0.5, 0.5)


def test_an_empty_answer_scores_nothing():
    assert rouge([""], ["a b"]).rouge_l == (0, 0, 0)
