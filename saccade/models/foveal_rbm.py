"""Foveal glimpses put together by a third-order Boltzmann machine that learns where to look."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.sensors.coordinates import check_images
from saccade.sensors.retina import Retina, sum_images


class Fixations(NamedTuple):
    """Where an image was looked at, and what was seen there."""

    places: Int[Tensor, "batch glimpse"]
    """Numbers of places; ``FovealRbm.places`` has where they are."""
    patches: Float[Tensor, "batch glimpse d_patch"]


class Visible(NamedTuple):
    """Glimpses and a class that are free to change; earlier glimpses are given, as their sum."""

    before: Float[Tensor, "row d_hidden"]
    """What the given glimpses and the biases send to the hidden units."""
    patches: Float[Tensor, "row free d_patch"]
    gates: Float[Tensor, "row free d_factor"]
    """Of the places where they were seen."""
    labels: Int[Tensor, " row"]


class FovealRbm(nn.Module):
    """A Boltzmann machine that puts glimpses together, with a controller of its gaze.

    Larochelle and Hinton, 2010 (https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf), the
    "multi-fixation RBM". Glimpses x_k, one hidden layer h and a class y have the energy::

        E = - d_y - sum_k b.x_k - c.h - h.U_y - sum_k h.P diag(z(place_k)) F x_k

    What a pixel does to a hidden unit depends on where it was seen: a third-order weight, factored
    into filters F, one gate z for every place and factor, and a pooling P. The hidden units sum
    themselves out, so that the class is known in closed form after any number of glimpses::

        log p(y | x_1..k) = d_y + sum_j softplus(a_kj + U_yj) + constant
        a_k = c + sum_(i <= k) P diag(z(place_i)) F x_i

    The controller is a logistic regression from the hidden units and the places seen to whether
    the next place will make the right class more likely; it looks where that is most likely.

    Where we differ: the retina is that of the other models here, squares at several scales. A gate
    is a sigmoid, so that a place weakens a factor and never turns it.

    Args:
        size: Height and width of the images in pixels.
        side: Places are a square of so many times so many; the finest patches at its edges touch
            those of the image.

    >>> model = FovealRbm(size=(28, 28), n_classes=10, retina=Retina(size=8), side=5, n_glimpses=3)
    >>> model(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    places: Float[Tensor, "place 2"]

    def __init__(
        self,
        *,
        size: tuple[int, int],
        n_classes: int,
        retina: Retina,
        side: int,
        n_glimpses: int,
        d_factor: int = 256,
        d_hidden: int = 512,
    ) -> None:
        super().__init__()
        retina.check(*size)
        if side < 2 or not 1 <= n_glimpses <= side**2:
            raise UsageError(
                "expected a side of 2 places or more and 1 to side x side glimpses, "
                f"got side {side} and {n_glimpses} glimpses",
                hint="no place is looked at twice",
            )
        self.size, self.retina, self.n_glimpses = size, retina, n_glimpses
        self.register_buffer("places", _grid(side, size=size, patch=retina.size))
        self.filters = nn.Linear(retina.d_patch, d_factor, bias=False)  # F
        self.gates = nn.Parameter(torch.randn(side**2, d_factor))  # z, before the sigmoid
        self.pool = nn.Linear(d_factor, d_hidden)  # P and c
        self.of_class = nn.Parameter(torch.randn(n_classes, d_hidden) / d_hidden**0.5)  # U
        self.class_bias = nn.Parameter(torch.zeros(n_classes))  # d
        self.pixel_bias = nn.Parameter(torch.zeros(retina.d_patch))  # b
        self.controller = nn.Linear(d_hidden + side**2, side**2)
        # Twice what keeps the size of what comes in: pixels are mostly dark, gates half shut.
        nn.init.normal_(self.filters.weight, std=2 * retina.d_patch**-0.5)
        nn.init.normal_(self.pool.weight, std=2 * d_factor**-0.5)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer, looking where the controller would."""
        return self.logits(self.drives(self.look(images))[:, -1])

    @torch.no_grad()
    def look(
        self, images: Float[Tensor, "batch height width"], *, explore: float = 0.0
    ) -> Fixations:
        """Look ``n_glimpses`` times at each image, never twice at one place.

        Args:
            explore: How likely a place is drawn at random instead of chosen by the controller.
        """
        check_images(images, size=self.size)
        summed = sum_images(images)
        drive = self.pool.bias.expand(len(images), -1)
        seen = images.new_zeros(len(images), len(self.places))
        chosen, patches = [], []
        for _ in range(self.n_glimpses):
            scores = self.scores(drive, seen)
            strays = torch.rand(len(images), 1, device=images.device) < explore
            scores = torch.where(strays, torch.rand_like(scores), scores)
            place = scores.masked_fill(seen > 0, -torch.inf).argmax(1)
            patch = self.retina.look_again(summed, self.places[place][:, None]).flatten(1)
            drive = drive + self.sent(patch, self.gates_at(place))
            seen = seen.scatter(1, place[:, None], 1.0)
            chosen.append(place)
            patches.append(patch)
        return Fixations(torch.stack(chosen, 1), torch.stack(patches, 1))

    def scores(
        self, drive: Float[Tensor, "*any d_hidden"], seen: Float[Tensor, "*any place"]
    ) -> Float[Tensor, "*any place"]:
        """The controller: log-odds that a look at each place makes the answer better."""
        return self.controller(torch.cat([drive.detach().sigmoid(), seen], -1))

    def gates_at(self, places: Int[Tensor, "*any"]) -> Float[Tensor, "*any d_factor"]:
        """What a place lets through of each factor: z."""
        return functional.embedding(places, self.gates.sigmoid())

    def sent(
        self, patches: Float[Tensor, "*any d_patch"], gates: Float[Tensor, "*any d_factor"]
    ) -> Float[Tensor, "*any d_hidden"]:
        """What glimpses send to the hidden units: P diag(z) F x."""
        return functional.linear(gates * self.filters(patches), self.pool.weight)

    def drives(self, fixations: Fixations) -> Float[Tensor, "batch glimpse_and_1 d_hidden"]:
        """The input of the hidden units after 0, 1, 2, ... glimpses, without that of the class."""
        sent = self.sent(fixations.patches, self.gates_at(fixations.places))
        return self.pool.bias + functional.pad(sent.cumsum(1), (0, 0, 1, 0))

    def logits(self, drives: Float[Tensor, "*any d_hidden"]) -> Float[Tensor, "*any d_class"]:
        """The class given the glimpses, before the softmax; hidden units are summed out."""
        on = functional.softplus(drives[..., None, :] + self.of_class)  # [*any, d_class, d_hidden]
        return self.class_bias + on.sum(-1)

    def free_energy(self, visible: Visible) -> Float[Tensor, " row"]:
        """The energy of what is seen with the hidden units summed out."""
        drive = visible.before + self.sent(visible.patches, visible.gates).sum(1)
        on = functional.softplus(drive + self.of_class[visible.labels]).sum(-1)
        pixels = visible.patches.sum(1) @ self.pixel_bias
        return -self.class_bias[visible.labels] - pixels - on

    @torch.no_grad()
    def gibbs(self, visible: Visible, *, n_steps: int = 1) -> Visible:
        """Draw free glimpses and the class anew, from the hidden units that they bring about."""
        for _ in range(n_steps):
            drive = visible.before + self.sent(visible.patches, visible.gates).sum(1)
            on = (drive + self.of_class[visible.labels]).sigmoid().bernoulli()
            factors = visible.gates * (on @ self.pool.weight)[:, None]  # [row, free, d_factor]
            pixels = factors @ self.filters.weight + self.pixel_bias
            classes = (self.class_bias + on @ self.of_class.T).softmax(-1)
            visible = visible._replace(
                patches=pixels.sigmoid().bernoulli(), labels=classes.multinomial(1).squeeze(1)
            )
        return visible


def _grid(side: int, *, size: tuple[int, int], patch: int) -> Float[Tensor, "place 2"]:
    """Centres of a square of places, (x, y), row by row."""
    height, width = size
    along = torch.linspace(-1, 1, side)
    rows, columns = torch.meshgrid(
        along * (1 - patch / height), along * (1 - patch / width), indexing="ij"
    )
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)
