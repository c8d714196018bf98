"""Worked by hand from the paper's formula, and alignments against all there are."""

import random
from itertools import product

import pytest

from saccade.errors import UsageError
from saccade.zoo.metrics.translation_metrics import align, meteor


def by_formula(matches, answer, reference, runs):
    p, r = matches / answer, matches / reference
    return 10 * p * r / (r + 9 * p) * (1 - 0.5 * (runs / matches) ** 3)


@pytest.mark.parametrize(
    ("answer", "reference", "matches", "runs"),
    [
        ("the cat sat on the mat", "the cat sat on the mat", 6, 1),
        ("on the mat sat the cat", "the cat sat on the mat", 6, 3),
        ("the cat was sat on the mat", "the cat sat on the mat", 6, 2),
        ("The cats sat.", "the cat sat", 3, 1),  # by the stem
        ("the feline sat", "the cat sat", 2, 2),  # no synonyms
    ],
)
def test_a_sentence_scores_as_the_formula_says(answer, reference, matches, runs):
    n, m = len(answer.split()), len(reference.split())
    assert meteor([answer], [reference]).score == pytest.approx(by_formula(matches, n, m, runs))


def best_of_all(answer, reference):
    """Every way to give each word a place of the reference or none; lower case is a word's stem."""
    found = []
    for places in product([None, *range(len(reference))], repeat=len(answer)):
        used = [j for j in places if j is not None]
        pairs = [(a, reference[j]) for a, j in zip(answer, places, strict=True) if j is not None]
        if len(set(used)) < len(used) or any(a.lower() != b.lower() for a, b in pairs):
            continue
        before = (None, *places)
        runs = sum(
            j is not None and (last is None or last != j - 1)
            for last, j in zip(before, places, strict=False)
        )
        found.append((len(pairs), sum(a == b for a, b in pairs), -runs))
    n, exact, runs = max(found)
    return n, exact, -runs


def test_an_alignment_is_the_best_of_all_there_are():
    draw = random.Random(3)
    for _ in range(60):
        answer, reference = (draw.choices("aAbB", k=draw.randint(1, 5)) for _ in range(2))
        stems = [[word.lower() for word in side] for side in (answer, reference)]
        assert align(answer, reference, *stems) == best_of_all(answer, reference)


def test_the_score_is_the_mean_and_the_best_reference_counts():
    result = meteor(["a b c", "x y"], [["z", "a b c"], ["p q"]])
    assert result.by_sentence == (pytest.approx(by_formula(3, 3, 3, 1)), 0)
    assert result.score == pytest.approx(sum(result.by_sentence) / 2)


def test_stems_are_those_of_the_language():
    german = meteor(["die Hunde"], ["die Hund"], language="german")
    assert german.score == pytest.approx(by_formula(2, 2, 2, 1))
    assert german.stages == "exact, stem (german)"
    with pytest.raises(UsageError, match="no stems are known for 'klingon'"):
        meteor(["a"], ["a"], language="klingon")


def test_an_empty_answer_scores_nothing():
    assert meteor(["", "a"], ["a", "..."]).score == 0
