"""DRAM: recognises several objects in an image in sequence, with a few glimpses each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.models.ram import LocationNetwork
from saccade.zoo.objectives.reinforce import LabelledBaseline, of_right_answer
from saccade.zoo.objectives.variational import SampledBound, sampled_bound
from saccade.zoo.sensors.retina import Retina, SummedImages, check_images, sum_images

COARSE = 20  # side in pixels of the context network's input
N_FILTERS = 16  # of each layer of the context network, and of the glimpse network's first layer


class Reading(NamedTuple):
    """Result of a pass over a batch of images; the first axis has M samples of each image."""

    logits: Float[Tensor, "sample batch object look d_class"]
    """The answer for each object after each glimpse; the last one counts."""
    centres: Float[Tensor, "sample batch glimpse 2"]
    """Locations of the glimpses."""
    log_prob: Float[Tensor, "sample batch glimpse"]
    """Log-density of each location."""
    expected: Float[Tensor, "sample batch glimpse d_class"]
    """The baseline: the expected reward before a location was sampled, for each possible class of
    the current object."""


class _Path(NamedTuple):
    """A path: patches and locations."""

    patches: Float[Tensor, "rows glimpse d_patch"]
    places: Float[Tensor, "rows glimpse 2"]


class Dram(nn.Module):
    """Deep Recurrent Attention Model.

    Ba et al., 2015 (https://arxiv.org/abs/1412.7755), section 3, with its symbols::

        g_n = relu(what x_n) * relu(where l_n)        glimpse network
        r1_n = LSTM(g_n, r1_(n-1))                    lower layer: what was seen
        r2_n = LSTM(r1_n, r2_(n-1))                   upper layer: where to look
        r2_0 = context(coarse image)                  context network
        l_(n+1) ~ N(mean(r2_n), std)                  emission network
        y_s = softmax(answer r1_n)                    after ``n_glimpses`` for each object s

    The context network sees the whole image, so it may only influence where to look: it initialises
    the upper layer, which has no path to the answer. One extra answer after the objects marks the
    end (`read_objects`).

    Where we differ: the glimpse network has two convolutions with stride 2, where the paper has
    three; the emission network stays inside the image (`LocationNetwork`); and there is an answer
    after each glimpse, which may be trained, and measures the value of the glimpse (`dram_loss`).

    Training first computes a path and then processes it again with all glimpses at once, because
    locations are constants for the gradient: this is faster than autograd along the path.

    Args:
        size: Height and width of the images in pixels.
        n_objects: Number of answers, including the end answer.
        n_glimpses: Glimpses before each answer.
        is_backward: The objects are read from right to left.
        reach: Largest distance of a mean from the centre; 1 is the edge of the image.

    >>> model = Dram(size=(56, 56), n_classes=11, retina=Retina(size=8), n_objects=3, n_glimpses=2)
    >>> model(torch.zeros(2, 56, 56)).shape
    torch.Size([2, 3, 11])
    """

    std: Tensor

    def __init__(  # noqa: PLR0913
        self,
        *,
        size: tuple[int, int],
        n_classes: int,
        retina: Retina,
        n_objects: int,
        n_glimpses: int,
        d_hidden: int = 256,
        is_backward: bool = False,
        std: float = 0.1,
        reach: float = 0.8,
    ) -> None:
        super().__init__()
        retina.check(*size)
        self.size, self.retina, self.is_backward = size, retina, is_backward
        self.n_objects, self.n_glimpses = n_objects, n_glimpses
        self.register_buffer("std", torch.tensor(std))
        self.context = _Context(d_hidden)
        self.what = _What(retina, d_hidden)
        of_place = nn.Linear(2, d_hidden)
        # A product of two small numbers is smaller still: initially the location factor is near 1.
        nn.init.ones_(of_place.bias)
        self.where = nn.Sequential(of_place, nn.ReLU())
        self.lower = LstmCell(d_hidden, d_hidden)
        self.upper = LstmCell(d_hidden, d_hidden)
        self.mean = LocationNetwork(d_hidden, d_hidden=d_hidden, reach=reach)
        self.answer = nn.Linear(d_hidden, n_classes)
        self.baseline = LabelledBaseline(d_hidden, n_classes)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch object d_class"]:
        """The answers, with glimpses at the policy's means."""
        return self.look(images, is_drawn=False).logits[0, :, :, -1]

    def look(
        self, images: Float[Tensor, "batch height width"], *, n_samples: int = 1, is_drawn: bool
    ) -> Reading:
        """Read the objects of each image.

        Args:
            n_samples: Number of independent passes over each image.
            is_drawn: Sample locations around the mean; otherwise use the mean.
        """
        check_images(images, size=self.size)
        context = self.context(images).repeat_interleave(n_samples, dim=0)
        path = self._path(sum_images(images), context.detach(), is_drawn=is_drawn)
        glimpses = self.what(path.patches) * self.where(path.places)
        seen = self.lower.unroll(glimpses).outputs  # [rows, glimpse, d_hidden]
        guided = self.upper.unroll(seen, self._start(context)).outputs
        before = torch.cat([context[:, None], guided[:, :-1]], dim=1)  # states that chose locations
        answers = self.answer(seen).unflatten(1, (self.n_objects, self.n_glimpses))
        found = (answers, path.places, self._log_prob(path.places, before))
        return Reading(
            *(
                each.unflatten(0, (len(images), n_samples)).transpose(0, 1)
                for each in (*found, self.baseline(before))
            )
        )

    @torch.no_grad()
    def _path(
        self, images: SummedImages, context: Float[Tensor, "rows d_hidden"], *, is_drawn: bool
    ) -> _Path:
        """Choose locations one after the other."""
        rows, n = len(context), len(images.sums)
        lower, upper, guide = self.lower.start(rows), self._start(context), context
        patches, places = [], []
        for _ in range(self.n_objects * self.n_glimpses):
            place = self.mean(guide)
            if is_drawn:
                place = place + self.std * torch.randn_like(place)
            patch = self.retina.look_again(images, place.view(n, -1, 2)).flatten(2).flatten(0, 1)
            patches.append(patch)
            places.append(place)
            seen, lower = self.lower.step(self.what(patch) * self.where(place), lower)
            guide, upper = self.upper.step(seen, upper)
        return _Path(torch.stack(patches, 1), torch.stack(places, 1))

    def set_std(self, std: float) -> None:
        """Set the standard deviation of sampled locations."""
        self.std.fill_(std)

    def _start(self, context: Float[Tensor, "rows d_hidden"]) -> LstmState:
        return LstmState(context, torch.zeros_like(context))

    def _log_prob(
        self, places: Float[Tensor, "rows glimpse 2"], before: Float[Tensor, "rows glimpse d"]
    ) -> Float[Tensor, "rows glimpse"]:
        off = (places - self.mean(before)) / self.std
        return -0.5 * off.square().sum(-1) - 2 * self.std.log() - math.log(2 * math.pi)


class _What(nn.Module):
    """The "what" pathway: two convolutions over the scales of a glimpse, and a linear map."""

    def __init__(self, retina: Retina, d_hidden: int) -> None:
        super().__init__()
        self.filters = nn.Sequential(
            nn.Unflatten(1, (retina.n_scales, retina.size, retina.size)),
            nn.Conv2d(retina.n_scales, N_FILTERS, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(N_FILTERS, 2 * N_FILTERS, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        side = math.ceil(math.ceil(retina.size / 2) / 2)
        self.units = nn.Linear(2 * N_FILTERS * side**2, d_hidden)

    def forward(self, patches: Float[Tensor, "*any d_patch"]) -> Float[Tensor, "*any d_hidden"]:
        shown = self.filters(patches.reshape(-1, patches.shape[-1]))
        return self.units(shown).relu().view(*patches.shape[:-1], -1)


class _Context(nn.Module):
    """The context network: two convolutions over the coarse image, and a linear map."""

    def __init__(self, d_hidden: int) -> None:
        super().__init__()
        self.filters = nn.Sequential(
            nn.Conv2d(1, N_FILTERS, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(N_FILTERS, N_FILTERS, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.state = nn.Linear(N_FILTERS * (COARSE // 2) ** 2, d_hidden)

    def forward(self, images: Float[Tensor, "batch height width"]) -> Tensor:
        coarse = functional.adaptive_avg_pool2d(images[:, None], COARSE)
        return self.state(self.filters(coarse).flatten(1)).tanh()


def dram_loss(
    reading: Reading,
    target: Int[Tensor, "batch object"],
    *,
    early_weight: float = 0.0,
    discount: float = 1.0,
    reward_weight: float = 1.0,
) -> SampledBound:
    """The variational bound of the answers' likelihood, sampled; section 4, equations 9 to 14.

    A location is credited with what the glimpses from there on add to the log-likelihood of the
    answers: the bound is the sum of these terms. The paper credits it with the log-likelihood
    itself, which has the same mean gradient and more noise.

    Args:
        early_weight: Weight of the mean over the earlier answers for an object, relative to the
        last one; the paper trains only the last ones.
        discount: Below 1 later glimpses count less; 1: the gradient of the bound.
        reward_weight: Weight of the credit. It trains no weights that the answers train, so it
            matters only with gradient clipping.
    """
    right = target[None, :, :, None].expand(reading.logits.shape[:4])
    log_likelihood = -functional.cross_entropy(
        reading.logits.flatten(0, 3), right.flatten(), reduction="none"
    ).view(right.shape)
    added = log_likelihood.diff(dim=3, prepend=torch.zeros_like(log_likelihood[..., :1]))
    bound = sampled_bound(
        reading.log_prob,
        added.flatten(2),
        baseline=of_right_answer(reading.expected, right[0].flatten(1)),
        discount=discount,
        reward_weight=reward_weight,
    )
    early = log_likelihood[..., :-1]
    mean = target.shape[1] * early.sum() / max(1, early.numel())  # of all objects of an image
    return bound._replace(loss=bound.loss - early_weight * mean)


def read_together(
    readers: Sequence[Dram], images: Float[Tensor, "batch height width"], *, n_samples: int
) -> Float[Tensor, "batch object d_class"]:
    """Log-probabilities of the objects from left to right, by an ensemble of readers; section 5.2.

    Each reader is averaged over sampled paths (Monte Carlo averaging), and their probabilities are
    multiplied. Some may read backward: their answers are reversed, except for the end answer. The
    paper searches for a sequence that is likely for a forward and a backward reader among the best
    of each; with a known number of objects this gives the same without a search.
    """
    total = torch.zeros(())
    for reader in readers:
        logits = reader.look(images, n_samples=n_samples, is_drawn=True).logits[..., -1, :]
        said = logits.log_softmax(-1).logsumexp(0) - math.log(n_samples)
        total = total + (from_left(said) if reader.is_backward else said)
    return total.log_softmax(-1)


def from_left(
    backward: Float[Tensor, "batch object d_class"],
) -> Float[Tensor, "batch object d_class"]:
    """Reverse the answers of a backward reader, except for the last one, the end.

    >>> from_left(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten()
    tensor([2., 1., 3.])
    """
    return torch.cat([backward[:, :-1].flip(1), backward[:, -1:]], dim=1)


def read_objects(
    logits: Float[Tensor, "batch object d_class"], *, end: int
) -> list[tuple[int, ...]]:
    """The objects of each image, up to the answer ``end``.

    >>> read_objects(torch.eye(3)[None, [1, 0, 2]], end=2)
    [(1, 0)]
    """
    said = logits.argmax(-1).tolist()
    return [tuple(row[: row.index(end)] if end in row else row) for row in said]
