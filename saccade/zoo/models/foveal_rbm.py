"""Foveal glimpses combined by a third-order Boltzmann machine that learns where to look."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.sensors.retina import Retina, check_images, sum_images


class Fixations(NamedTuple):
    """Locations and glimpses of an image."""

    places: Int[Tensor, "batch glimpse"]
    """Indices of locations; ``FovealRbm.places`` has their coordinates."""
    patches: Float[Tensor, "batch glimpse d_patch"]


class Visible(NamedTuple):
    """Free glimpses and class; earlier glimpses are fixed, given as their sum."""

    before: Float[Tensor, "row d_hidden"]
    """Input of the hidden units from the fixed glimpses and the biases."""
    patches: Float[Tensor, "row free d_patch"]
    gates: Float[Tensor, "row free d_factor"]
    """Gates of the free glimpses' locations."""
    labels: Int[Tensor, " row"]


class FovealRbm(nn.Module):
    """A Boltzmann machine that combines glimpses, with a controller of the gaze.

    Larochelle and Hinton, 2010 (https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf), the
    "multi-fixation RBM". Glimpses x_k, one hidden layer h and a class y have the energy::

        E = - d_y - sum_k b.x_k - c.h - h.U_y - sum_k h.P diag(z(place_k)) F x_k

    The effect of a pixel on a hidden unit depends on its location: a third-order weight, factored
    into filters F, one gate z for every location and factor, and a pooling P. The hidden units can
    be summed out, so the class has a closed form after any number of glimpses::

        log p(y | x_1..k) = d_y + sum_j softplus(a_kj + U_yj) + constant
        a_k = c + sum_(i <= k) P diag(z(place_i)) F x_i

    The controller is a logistic regression from the hidden units and the visited locations to
    whether the next location will make the correct class more likely; it looks where that is most
    likely.

    Where we differ: the retina is that of the other models here, squares at several scales. A gate
    is a sigmoid, so a location can weaken a factor but not change its sign.

    Args:
        size: Height and width of the images in pixels.
        side: Locations form a grid of side x side; the finest patches of its outer locations touch
            the edges of the image.

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
                "expected a side of 2 locations or more and 1 to side x side glimpses, "
                f"got side {side} and {n_glimpses} glimpses",
                hint="no location is visited twice",
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
        # Twice the variance-preserving scale: pixels are mostly dark, gates half closed.
        nn.init.normal_(self.filters.weight, std=2 * retina.d_patch**-0.5)
        nn.init.normal_(self.pool.weight, std=2 * d_factor**-0.5)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer, with the controller's glimpses."""
        return self.logits(self.drives(self.look(images))[:, -1])

    @torch.no_grad()
    def look(
        self, images: Float[Tensor, "batch height width"], *, explore: float = 0.0
    ) -> Fixations:
        """Take ``n_glimpses`` glimpses of each image, never two at one location.

        Args:
            explore: Probability that a location is random instead of chosen by the controller.
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
        """The controller: log-odds that a glimpse at each location improves the answer."""
        return self.controller(torch.cat([drive.detach().sigmoid(), seen], -1))

    def gates_at(self, places: Int[Tensor, "*any"]) -> Float[Tensor, "*any d_factor"]:
        """The gates of each factor at a location: z."""
        return functional.embedding(places, self.gates.sigmoid())

    def sent(
        self, patches: Float[Tensor, "*any d_patch"], gates: Float[Tensor, "*any d_factor"]
    ) -> Float[Tensor, "*any d_hidden"]:
        """Input of the hidden units from glimpses: P diag(z) F x."""
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
        """The free energy of the visible units, with the hidden units summed out."""
        drive = visible.before + self.sent(visible.patches, visible.gates).sum(1)
        on = functional.softplus(drive + self.of_class[visible.labels]).sum(-1)
        pixels = visible.patches.sum(1) @ self.pixel_bias
        return -self.class_bias[visible.labels] - pixels - on

    @torch.no_grad()
    def gibbs(self, visible: Visible, *, n_steps: int = 1) -> Visible:
        """Resample the free glimpses and the class by Gibbs sampling."""
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
    """Centres of a square grid of locations, (x, y), row by row."""
    height, width = size
    along = torch.linspace(-1, 1, side)
    rows, columns = torch.meshgrid(
        along * (1 - patch / height), along * (1 - patch / width), indexing="ij"
    )
    return torch.stack([columns, rows], dim=-1).flatten(0, 1)


# The objectives of a multi-fixation Boltzmann machine and its controller.


class FovealLoss(NamedTuple):
    """The loss, and its parts without gradient: means over images and glimpses."""

    loss: Float[Tensor, ""]
    nats: Float[Tensor, ""]
    """Of the correct class."""
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

    Where we differ: a mean over glimpses instead of a sum, which only changes the learning rate. k
    starts at 0, without any glimpse: the controller compares the first glimpse with that, and
    against an untrained answer every location looks good. The second part uses one random glimpse
    of each path, which is the same on average and less work.

    Args:
        is_sequential: If not, "hybrid": - log p(y | x_1..K) - generative_weight log p(y, x_1..K),
            and again - log p(y).
    """
    drives = model.drives(fixations)
    # Before the first glimpse all images are the same, and summing out is most of the cost.
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
    """Free energy of the data minus that of Gibbs samples started at it.

    Hinton, 2002 (https://doi.org/10.1162/089976602760128018). Its gradient, with samples as
    constants, estimates that of - log p(visible), the better the more steps.
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
    """The free units: one glimpse of each path given the earlier ones, or all glimpses."""
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
    """Logistic regression: did the visited location make the correct class more likely?"""
    chosen = functional.one_hot(fixations.places, len(model.places)).to(drives)
    seen = chosen.cumsum(1) - chosen  # [batch, glimpse, place]: before that glimpse
    scores = (model.scores(drives[:, :-1], seen) * chosen).sum(-1)
    return functional.binary_cross_entropy_with_logits(scores, is_better.to(scores))
