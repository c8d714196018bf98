"""Against loops over words and dimensions."""

import math

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.metrics.summary_metrics import embedding_scores, embedding_similarity


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def by_loops(first, second):
    greedy = 0.0
    for mine, theirs in ((first, second), (second, first)):
        best = [max(cosine(word, other) for other in theirs) for word in mine]
        greedy += sum(best) / len(best) / 2
    average = cosine(*([sum(d) / len(d) for d in zip(*s, strict=True)] for s in (first, second)))
    extrema = cosine(
        *([max(d, key=abs) for d in zip(*side, strict=True)] for side in (first, second))
    )
    return greedy, average, extrema


def test_it_agrees_with_loops():
    generator = torch.Generator().manual_seed(2)
    for n, m in ((3, 5), (7, 2), (1, 1)):
        first, second = (torch.randn(k, 11, generator=generator) for k in (n, m))
        found = embedding_similarity(first, second)
        assert found == pytest.approx(by_loops(first.tolist(), second.tolist()), abs=1e-5)


def test_a_sentence_is_like_itself():
    words = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    assert embedding_similarity(words, words) == pytest.approx((1, 1, 1))


def test_sentences_are_averaged_and_words_without_a_vector_left_out():
    vectors = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0, 1.0])}
    found = embedding_scores(["A zebra!", "zebra"], ["a", "b"], vectors=vectors)
    assert found == pytest.approx((0.5, 0.5, 0.5))


def test_no_vectors_at_all_are_refused():
    with pytest.raises(UsageError, match="there are no word vectors"):
        embedding_scores(["a"], ["a"], vectors={})
