"""Weights over an image, word by word: what captioners leave to be drawn."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.trace.trace import ImageTrace
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.models.sequence_reader import influence
from saccade.zoo.models.show_and_tell import ShowAndTell
from saccade.zoo.tasks.digit_captions import Sentences
from saccade.zoo.tasks.vocabulary import EOS, Vocabulary


def grid_of(n_cells: int, *, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a grid of so many cells over an image: the most nearly square cells.

    >>> grid_of(88, height=64, width=88)
    (8, 11)
    """
    pairs = [(rows, n_cells // rows) for rows in range(1, n_cells + 1) if n_cells % rows == 0]
    return min(pairs, key=lambda pair: abs(pair[0] * width - pair[1] * height))


def overlay(
    image: Float[Tensor, "colour height width"],
    weights: Float[Tensor, "step cell"],
    *,
    steps: tuple[str, ...],
    title: str = "",
    kind: str = "overlay",
) -> ImageTrace:
    """The trace of weights over the cells of an image, a word a step."""
    colours, height, width = image.shape
    rows, columns = grid_of(weights.shape[1], height=height, width=width)
    return ImageTrace(
        kind=kind,
        image=image[0] if colours == 1 else image.permute(1, 2, 0),
        steps=steps,
        outlines=torch.zeros(len(steps), 0, 4, 2),
        heat=weights.unflatten(1, (rows, columns)),
        title=title,
    )


def influence_trace(
    model: ShowAndTell,
    images: Float[Tensor, "1 colour height width"],
    *,
    vocabulary: Vocabulary,
    longest: int,
) -> ImageTrace:
    """Of a model without attention: how much each part of the image counts for each word."""
    (found,) = greedy(model, images, max_length=longest)
    ids = [*found.ids, EOS]
    sentences = Sentences.of(torch.tensor([ids]))
    with torch.enable_grad():
        maps = model.encoder(images).detach().requires_grad_()
        cells = maps.flatten(2).mT  # [1, cell, d_annotation]
        logits = model.words_after(cells.mean(1), sentences)
        said = logits.log_softmax(-1)[range(len(ids)), ids]
        weights = influence(said, cells)[:, 0]
    steps = tuple(vocabulary.words[each] for each in ids)
    title = "How much each part of the image counts for each word"
    return overlay(images[0], weights, steps=steps, title=title, kind="influence")
