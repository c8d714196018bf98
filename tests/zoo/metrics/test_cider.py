"""Against vectors over all n-grams, written out in full."""

import random

import numpy as np
import pytest

from saccade.errors import UsageError
from saccade.zoo.metrics.summary_metrics import cider


@pytest.fixture(scope="module")
def captions():
    draw = random.Random(5)
    lines = [" ".join(draw.choices("abcdef", k=draw.randint(3, 9))) for _ in range(7 * 4)]
    return lines[:7], [lines[7 + 3 * k : 10 + 3 * k] for k in range(7)]


def grams_of(text, n):
    words = text.split()
    return [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]


def vector(text, n, vocabulary, references):
    """Count times the logarithm of images over images with the n-gram, one by one."""
    values = np.zeros(len(vocabulary))
    for place, gram in enumerate(vocabulary):
        images = sum(any(gram in grams_of(each, n) for each in held) for held in references)
        values[place] = grams_of(text, n).count(gram) * np.log(len(references) / max(1, images))
    return values


def by_vectors(answers, references, *, clipped):
    scores = []
    for answer, held in zip(answers, references, strict=True):
        total = 0.0
        for n in range(1, 5):
            texts = [*answers, *(each for group in references for each in group)]
            vocabulary = sorted({gram for text in texts for gram in grams_of(text, n)})
            g = vector(answer, n, vocabulary, references)
            for reference in held:
                r = vector(reference, n, vocabulary, references)
                norm = np.linalg.norm(g) * np.linalg.norm(r)
                if norm == 0:
                    continue
                dot = (np.minimum(g, r) if clipped else g) @ r
                longer = len(answer.split()) - len(reference.split())
                penalty = 10 * np.exp(-(longer**2) / 72) if clipped else 1
                total += penalty * dot / norm / len(held) / 4
        scores.append(total)
    return scores


@pytest.mark.parametrize(("variant", "clipped"), [("cider-d", True), ("cider", False)])
def test_it_agrees_with_vectors_over_all_ngrams(captions, variant, clipped):
    result = cider(*captions, variant=variant)
    wanted = by_vectors(*captions, clipped=clipped)
    assert result.by_sentence == pytest.approx(wanted)
    assert result.score == pytest.approx(sum(wanted) / len(wanted))


def test_a_perfect_answer_scores_ten_and_one_plain():
    texts = ["a man rides a horse", "two dogs play in snow", "some birds fly over water"]
    assert cider(texts, texts).score == pytest.approx(10)
    assert cider(texts, texts, variant="cider").score == pytest.approx(1)


def test_words_that_are_everywhere_count_for_nothing():
    result = cider(["the the the the", "the dog runs far away"], ["the cat", "the dog"])
    assert result.by_sentence[0] == 0


def test_an_unknown_variant_is_refused():
    with pytest.raises(UsageError, match="no variant 'cider-r'") as caught:
        cider(["a"], ["a"], variant="cider-r")
    assert caught.value.hint == "cider-d or cider"


@pytest.mark.parametrize("variant", ["cider-d", "cider"])
def test_an_answer_without_a_word_scores_nothing(variant):
    references = ["a dog runs", "two cats sleep"]
    assert cider(["", "two cats sleep"], references, variant=variant).by_sentence[0] == 0.0
