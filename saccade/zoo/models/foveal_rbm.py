"""Foveal glimpses put together by a third-order Boltzmann machine that learns where to look."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.sensors.retina import Retina, check_images, sum_images


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


# What a multi-fixation Boltzmann machine and its controller are trained towards.


class FovealLoss(NamedTuple):
    """The loss, and its parts without gradient: means over images and glimpses."""

    loss: Float[Tensor, ""]
    nats: Float[Tensor, ""]
    """Of the right class."""
    divergence: Float[Tensor, ""]
    """Of the glimpses; its gradient is what counts."""
    control: Float[Tensor, ""]
    """Of the controller, in nats; log 2 is guessing."""


def foveal_loss(
    model: FovealRbm,
    fixations: Fixations,
    labels: Int[Tensor, " batch"],
    *,
    generative_weight: float,
    is_sequential: bool = True,
) -> FovealLoss:
    """The hybrid cost of the machine, and the logistic cost of its controller.

    Larochelle and Hinton, 2010, "hybrid-sequential"; the second part is not computed, its gradient
    is estimated by one step of contrastive divergence::

        sum_k [- log p(y | x_1..k) - generative_weight log p(y, x_k | x_1..k-1)]

    Where we differ: a mean over glimpses instead of a sum, which changes the learning rate alone.
    k begins at 0, without any glimpse: the controller compares the first one with that, and beside
    an answer that nobody taught every place looks good. The second part is that of one glimpse of
    each path, drawn at random, which is the same on average and less work.

    Args:
        is_sequential: If not, "hybrid": - log p(y | x_1..K) - generative_weight log p(y, x_1..K),
            and again - log p(y).
    """
    drives = model.drives(fixations)
    # Before the first glimpse all images are the same, and summing hidden units out is most work.
    blind = model.logits(drives[:1, :1]).expand(len(labels), -1, -1)
    logits = torch.cat([blind, model.logits(drives[:, 1:])], dim=1)  # [batch, 1 + glimpse, class]
    targets = labels[:, None].expand(-1, logits.shape[1])
    nats = functional.cross_entropy(logits.mT, targets, reduction="none")
    taught = (nats if is_sequential else nats[:, [0, -1]]).mean()
    visible = _visible(model, fixations, labels, drives=drives, is_sequential=is_sequential)
    divergence = contrastive_divergence(model, visible)
    control = _control(model, fixations, drives=drives, is_better=nats[:, 1:] < nats[:, :-1])
    loss = taught + generative_weight * divergence + control
    return FovealLoss(loss, taught.detach(), divergence.detach(), control.detach())


def contrastive_divergence(
    model: FovealRbm, visible: Visible, *, n_steps: int = 1
) -> Float[Tensor, ""]:
    """How much lower the free energy of what was seen is than that of what the machine makes of it.

    Hinton, 2002 (https://doi.org/10.1162/089976602760128018). Its gradient, with what is drawn held
    fixed, estimates that of - log p(visible), the better the more steps.
    """
    drawn = model.gibbs(visible, n_steps=n_steps)
    return (model.free_energy(visible) - model.free_energy(drawn)).mean()


def _visible(
    model: FovealRbm,
    fixations: Fixations,
    labels: Int[Tensor, " batch"],
    *,
    drives: Float[Tensor, "batch glimpse_and_1 d_hidden"],
    is_sequential: bool,
) -> Visible:
    """What is free: one glimpse of each path after those before it, or all glimpses."""
    gates = model.gates_at(fixations.places)
    if not is_sequential:
        return Visible(drives[:, 0], fixations.patches, gates, labels)
    rows = torch.arange(len(labels), device=labels.device)
    one = torch.randint_like(labels, gates.shape[1])
    return Visible(
        before=drives[rows, one],
        patches=fixations.patches[rows, one][:, None],
        gates=gates[rows, one][:, None],
        labels=labels,
    )


def _control(
    model: FovealRbm,
    fixations: Fixations,
    *,
    drives: Float[Tensor, "batch glimpse_and_1 d_hidden"],
    is_better: Bool[Tensor, "batch glimpse"],
) -> Float[Tensor, ""]:
    """Logistic regression: did the place that was looked at make the right class more likely?"""
    chosen = functional.one_hot(fixations.places, len(model.places)).to(drives)
    seen = chosen.cumsum(1) - chosen  # [batch, glimpse, place]: before that glimpse
    scores = (model.scores(drives[:, :-1], seen) * chosen).sum(-1)
    return functional.binary_cross_entropy_with_logits(scores, is_better.to(scores))
