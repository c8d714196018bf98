"""Likeness of meaning by word vectors: greedy matching, averages, extrema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from saccade.errors import UsageError
from saccade.metrics.references import check_counts, plain_words


class EmbeddingSimilarity(NamedTuple):
    """Cosines, from -1 to 1."""

    greedy: float
    """Each word with the likest of the other sentence, both ways."""
    average: float
    """The mean vectors of both sentences."""
    extrema: float
    """The vectors that hold, for each dimension, the most extreme value of any word."""


def embedding_similarity(
    hypothesis: Float[Tensor, "word d_model"], reference: Float[Tensor, "other_word d_model"]
) -> EmbeddingSimilarity:
    """Compare two sentences given as the vectors of their words.

    Liu et al., 2016, "How NOT to evaluate your dialogue system", section 3.2
    (https://arxiv.org/abs/1603.08023). They found hardly any correlation with human judgement: see
    `correlation` before believing these.
    """
    cosines = normalize(hypothesis, dim=-1) @ normalize(reference, dim=-1).T  # [word, other_word]
    greedy = (cosines.amax(0).mean() + cosines.amax(1).mean()) / 2
    average = cosine_similarity(hypothesis.mean(0), reference.mean(0), dim=0)
    extrema = cosine_similarity(_extrema(hypothesis), _extrema(reference), dim=0)
    return EmbeddingSimilarity(float(greedy), float(average), float(extrema))


def embedding_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    vectors: Mapping[str, Float[Tensor, " d_model"]],
) -> EmbeddingSimilarity:
    """The mean over pairs of sentences. Words without a vector are left out.

    A pair with no known word on either side counts 0, as in the authors' code.
    """
    check_counts(references, hypotheses, "answers", "references")
    if not vectors:
        raise UsageError("there are no word vectors", hint="give a vector for each word")
    scores = []
    for pair in zip(hypotheses, references, strict=True):
        sides = [[vectors[w] for w in plain_words(text) if w in vectors] for text in pair]
        if all(sides):
            scores.append(embedding_similarity(*(torch.stack(side) for side in sides)))
        else:
            scores.append(EmbeddingSimilarity(0.0, 0.0, 0.0))
    return EmbeddingSimilarity(*(sum(each) / len(scores) for each in zip(*scores, strict=True)))


def _extrema(words: Float[Tensor, "word d_model"]) -> Float[Tensor, " d_model"]:
    most, least = words.amax(0), words.amin(0)
    return torch.where(most > least.abs(), most, least)
