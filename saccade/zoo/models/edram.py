"""EDRAM: a recurrent attention model with a spatial transformer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.sensors.retina import check_images
from saccade.zoo.sensors.spatial_transformer import IDENTITY, warp

CONTEXT_SIDE = 25  # pixels a side of the image that the context network sees: a quarter of 100


class Glimpsed(NamedTuple):
    """Result of a pass over a batch of images."""

    logits: Float[Tensor, "batch glimpse d_class"]
    """The answer after each glimpse."""
    thetas: Float[Tensor, "batch glimpse 2 3"]
    """The window of each glimpse, as an affine matrix."""
    patches: tuple[Float[Tensor, "batch side side"], ...]
    """The glimpses."""


class EdramLoss(NamedTuple):
    """The loss and its parts, each a mean over glimpses and examples."""

    loss: Float[Tensor, ""]
    named: Float[Tensor, ""]
    """Cross-entropy of the answers."""
    placed: Float[Tensor, ""]
    """Squared distance of the windows from their targets."""


class Edram(nn.Module):
    """Enriched Deep Recurrent Attention Model.

    Ablavatski et al., 2017 (https://arxiv.org/abs/1706.03581), section 3::

        what_t  = convolutions(warp(x, A_t)),  where_t = W A_t        glimpse network
        r1_t    = LSTM(r1_(t-1), what_t * where_t)                    names
        r2_t    = LSTM(r2_(t-1), r1_t)                                looks
        answer  = softmax of r1_t;  A_(t+1) = W r2_t + b              six numbers, any affine map

    A network of convolutions over the image at low resolution, the context, gives the upper LSTM
    its initial state: it may influence where to look but not the answer. Everything is
    differentiable, including the bilinear sampler, so there is no reward.

    Where we differ: it has fewer channels and hidden units than theirs. And the gradient through
    the sampler, from the glimpse to its window, can be scaled down: over some glimpses it grows,
    and dominates the gradient of the windows' own loss.

    Args:
        size: Height and width of the images in pixels.
        side: Side of a glimpse in pixels.
        channels: Channels of the glimpse network's convolutions; a pooling of 2 follows each.
        sampler_gradient: Scale of the gradient from a glimpse to its window; 1 in the paper.

    >>> model = Edram(size=(25, 25), n_classes=5, n_glimpses=2, side=10, channels=(3,), d_hidden=7)
    >>> model(torch.zeros(2, 25, 25)).shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        *,
        size: tuple[int, int],
        n_classes: int,
        n_glimpses: int = 6,
        side: int = 26,
        channels: Sequence[int] = (24, 48),
        d_hidden: int = 192,
        sampler_gradient: float = 1.0,
    ) -> None:
        super().__init__()
        self.size, self.n_glimpses, self.side = size, n_glimpses, side
        self.sampler_gradient = sampler_gradient
        self.context = nn.Sequential(*_convolutions((1, 16, 32), CONTEXT_SIDE, d_hidden))
        self.what = nn.Sequential(*_convolutions((1, *channels), side, d_hidden))
        self.where = nn.Linear(6, d_hidden)
        self.namer = LstmCell(d_hidden, d_hidden)
        self.looker = LstmCell(d_hidden, d_hidden)
        self.answer = nn.Linear(d_hidden, n_classes)
        self.emission = nn.Linear(d_hidden, 6)
        nn.init.zeros_(self.emission.weight)
        self.emission.bias.data.copy_(torch.tensor(IDENTITY))

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer after the last glimpse."""
        return self.look(images).logits[:, -1]

    def look(self, images: Float[Tensor, "batch height width"]) -> Glimpsed:
        """All glimpses, and the answer after each."""
        check_images(images, size=self.size)
        pictures = images[:, None]
        context = self.context(functional.adaptive_avg_pool2d(pictures, CONTEXT_SIDE))
        named = self.namer.start(len(images))
        looking = LstmState(context.tanh(), context)
        hiddens, thetas, patches = [], [], []
        for _ in range(self.n_glimpses):
            theta = self.emission(looking.hidden)
            window = theta.detach().lerp(theta, self.sampler_gradient)
            patch = warp(pictures, window.unflatten(1, (2, 3)), height=self.side, width=self.side)
            glimpse = self.what(patch) * self.where(window)
            named = self.namer.step(glimpse, named).state
            looking = self.looker.step(named.hidden, looking).state
            hiddens.append(named.hidden)
            thetas.append(theta)
            patches.append(patch[:, 0])
        return Glimpsed(
            logits=self.answer(torch.stack(hiddens, dim=1)),
            thetas=torch.stack(thetas, dim=1).unflatten(2, (2, 3)),
            patches=tuple(patches),
        )


def edram_loss(
    looked: Glimpsed,
    labels: Int[Tensor, " batch"],
    *,
    theta: Float[Tensor, "batch 2 3"],
    place_weight: float,
) -> EdramLoss:
    """Train the answer and the window of every glimpse: section 3.3.

    ``1/N sum_j ( -log p_j(label) + weight sum_k (theta_jk - theta*_k)^2 )``. The paper's ``beta_k``
    weights each of the six numbers separately; we use one weight.

    Args:
        theta: The bounding window of the object.
    """
    n_glimpses = looked.logits.shape[1]
    answers = looked.logits.flatten(0, 1)
    named = functional.cross_entropy(answers, labels.repeat_interleave(n_glimpses))
    placed = (looked.thetas - theta[:, None]).square().sum((2, 3)).mean()
    return EdramLoss(named + place_weight * placed, named.detach(), placed.detach())


def _convolutions(channels: Sequence[int], side: int, d_output: int) -> list[nn.Module]:
    """3 x 3 convolutions with poolings of 2, and a linear map."""
    layers: list[nn.Module] = []
    for d_in, d_out in pairwise(channels):
        layers += [nn.Conv2d(d_in, d_out, 3), nn.MaxPool2d(2), nn.ReLU()]
        side = (side - 2) // 2
    return [*layers, nn.Flatten(), nn.Linear(channels[-1] * side**2, d_output)]
