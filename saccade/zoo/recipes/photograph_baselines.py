"""Sentences about photographs that are copied: what a captioner must beat."""

from __future__ import annotations

from collections import Counter

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.tasks.photographs import Photographs, centre_crop

TOGETHER = 50  # images that are encoded at once


def most_frequent(photographs: Photographs) -> str:
    """The sentence that was said most often; of several the first by the alphabet."""
    counts = Counter(text for each in photographs.references() for text in each)
    return min(counts, key=lambda text: (-counts[text], text))


def nearest(encoder: nn.Module, known: Photographs, asked: Photographs, *, size: int) -> list[str]:
    """The first sentence of the photograph that looks most alike to an encoder."""
    library, queries = (_means(encoder, each, size=size) for each in (known, asked))
    # What all photographs have in common says nothing about which is near.
    common = library.mean(0)
    library, queries = (functional.normalize(each - common, dim=1) for each in (library, queries))
    best = (queries @ library.mT).argmax(1).tolist()
    references = known.references()
    return [references[at][0] for at in best]


def _means(
    encoder: nn.Module, photographs: Photographs, *, size: int
) -> Float[Tensor, "image d_annotation"]:
    parts = centre_crop(photographs.images, size).split(TOGETHER)
    return torch.cat([encoder(some).mean((2, 3)) for some in parts])
