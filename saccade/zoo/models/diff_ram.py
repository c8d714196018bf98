"""Differentiable RAM: DRAW's reader takes a few glimpses of an image, then classifies it."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.zoo.cells.cell import LearnedStart
from saccade.zoo.cells.lstm import LstmCell
from saccade.zoo.sensors.gaussian_bank import GaussianGrid, GridPlace, gaussian_read
from saccade.zoo.sensors.retina import check_images


class Looks(NamedTuple):
    """Result of a pass over a batch of images."""

    logits: Float[Tensor, "batch glimpse d_class"]
    """The answer after each glimpse."""
    grids: tuple[GaussianGrid, ...]
    """The grid of each glimpse."""
    patches: tuple[Float[Tensor, "batch size size"], ...]
    """The glimpses."""


class DifferentiableRam(nn.Module):
    """An LSTM that chooses its next glimpse, trained only by the gradient of the answer.

    Gregor et al., 2015 (https://arxiv.org/abs/1502.04623), section 4.1: the reader of DRAW, with
    the state of the LSTM in place of the decoder's, and a softmax after the last glimpse::

        patch_t = read(x, h_(t-1))          through a Gaussian filter bank
        h_t     = LSTM(h_(t-1), patch_t)
        answer  = softmax(W h_T + b)

    Nothing is sampled, so unlike RAM it needs no reward.

    Where we differ: a hidden layer is between the patch and the LSTM and also reads the glimpse's
    location (centre, log of stride and of width), as in RAM; there is an answer after every
    glimpse, so that early ones can be trained, too; the first glimpse may cover the middle part of
    the image; and the gradient through a glimpse's location may be clipped: through a chain of
    dependent locations it is many times larger for some images than for others, and would dominate
    the batch.

    Args:
        first_view: Initial size of a glimpse, as a share of the image's side.
        restraint: Clip each image's gradient through a location to this many times that of the
            median image; 0: no clipping.

    >>> model = DifferentiableRam(size=(11, 13), n_classes=5, n_glimpses=2, patch=3, d_hidden=7)
    >>> model(torch.zeros(2, 11, 13)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        size: tuple[int, int],
        n_classes: int,
        n_glimpses: int = 8,
        patch: int = 12,
        d_hidden: int = 256,
        first_view: float = 1.0,
        restraint: float = 0.0,
    ) -> None:
        super().__init__()
        self.size, self.n_glimpses, self.restraint = size, n_glimpses, restraint
        height, width = size
        self.place = GridPlace(
            d_hidden, height=height, width=width, size=patch, first_view=first_view
        )
        self.glimpse = nn.Linear(patch**2 + 4, d_hidden)
        self.core = LearnedStart(LstmCell(d_hidden, d_hidden))
        self.answer = nn.Linear(d_hidden, n_classes)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer after the last glimpse."""
        return self.look(images).logits[:, -1]

    def look(self, images: Float[Tensor, "batch height width"]) -> Looks:
        """All glimpses, and the answer after each."""
        check_images(images, size=self.size)
        state = self.core.start(len(images))
        hiddens, grids, patches = [], [], []
        for _ in range(self.n_glimpses):
            grid = self.place(clip_by_median(state.hidden, self.restraint))
            patch = gaussian_read(images[:, None], self.place.bank(grid))[:, 0]
            seen = torch.cat([patch.flatten(1), _where(grid)], dim=1)
            state = self.core.step(self.glimpse(seen).relu(), state).state
            hiddens.append(state.hidden)
            grids.append(grid)
            patches.append(patch)
        logits = self.answer(torch.stack(hiddens, dim=1))
        return Looks(logits, tuple(grids), tuple(patches))


def clip_by_median(
    hidden: Float[Tensor, "batch d_hidden"], most: float
) -> Float[Tensor, "batch d_hidden"]:
    """The identity, with each row's gradient clipped to ``most`` times that of the median row.

    >>> x = torch.ones(3, 1, requires_grad=True)
    >>> (clip_by_median(x, 2.0) * torch.tensor([[1.0], [-2.0], [50.0]])).sum().backward()
    >>> x.grad.flatten()
    tensor([ 1., -2.,  4.])
    """
    if most == 0 or not hidden.requires_grad:
        return hidden
    passed = hidden.view_as(hidden)  # a separate tensor: other uses of the state are not clipped
    passed.register_hook(partial(_cut, most))
    return passed


def _cut(most: float, gradient: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
    lengths = gradient.norm(dim=1, keepdim=True)
    limit = most * lengths.median()
    return gradient * (limit / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).clamp_max(1.0)


def _where(grid: GaussianGrid) -> Float[Tensor, "batch 4"]:
    """A grid as numbers of similar scale."""
    spread = torch.stack([grid.stride, grid.variance], dim=1)
    return torch.cat([grid.centre, spread.log()], dim=1)
