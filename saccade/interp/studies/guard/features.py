"""Tells prompts with a request in them from those without, by their most telling stretch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad, softplus

from saccade.errors import LensError, UsageError
from saccade.interp.lenses.head_lens import HeadLens

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses


# What the heads say over a prompt, in a few numbers a head: the features of a guard.

FIRST = 1  # heads rest on the first token of a text: what they hold there is like nothing else
# A head. One, chosen to tell requests from other text, holds much less where tasks and texts are
# new: tried with tasks and topics of the fitting side left out. Twelve hold no more.
N_NUMBERS = 8


class Points(NamedTuple):
    """Stretches of one prompt, and what the heads say over each of them."""

    features: Float[Tensor, "point feature"]
    """The numbers of the first head, then those of the second, and so on."""
    spans: list[tuple[int, int]]
    """First token of each stretch, and the one after its last."""


@dataclass(frozen=True)
class Readout:
    """From what heads hold at a token to some numbers for each of them."""

    usual: Mapping[int, Float[Tensor, "head d_head"]]
    """By layer: the mean of what each head holds in ordinary prompts."""
    reader: Mapping[int, Float[Tensor, "head d_head number"]]
    """By layer: the directions in which it is read."""
    window: int
    """Tokens in a stretch."""
    stride: int
    """Tokens from the start of a stretch to that of the next."""

    @property
    def sites(self) -> list[tuple[int, int]]:
        """(layer, head), in the order of the features."""
        return [(layer, head) for layer, z in self.usual.items() for head in range(len(z))]

    def tokens(
        self, z: Mapping[int, Float[Tensor, "*pos head d_head"]]
    ) -> Float[Tensor, "*pos feature"]:
        """The numbers of every head at every token."""
        parts = [
            torch.einsum("...hi,hin->...hn", z[layer].float().cpu() - usual, self.reader[layer])
            for layer, usual in self.usual.items()
        ]
        return torch.cat([each.flatten(-2) for each in parts], -1)

    def by_site(self, features: Float[Tensor, "*n feature"]) -> Float[Tensor, "*n site"]:
        """The sums over the numbers of each head."""
        return features.unflatten(-1, (len(self.sites), -1)).sum(-1)

    def points(self, z: Mapping[int, Float[Tensor, "pos head d_head"]]) -> Points:
        """The means of these numbers over the stretches of a prompt."""
        numbers = self.tokens(z)
        spans = stretches(len(numbers), window=self.window, stride=self.stride)
        sums = pad(numbers.double().cumsum(0), (0, 0, 1, 0))
        start, stop = torch.tensor(spans).T
        return Points((sums[stop] - sums[start]) / (stop - start)[:, None], spans)


def stretches(n_tokens: int, *, window: int, stride: int) -> list[tuple[int, int]]:
    """Where stretches of a text begin and end; the last one ends with the text.

    >>> stretches(12, window=5, stride=3)
    [(1, 6), (4, 9), (7, 12)]
    >>> stretches(3, window=5, stride=3), stretches(1, window=5, stride=3)
    ([(1, 3)], [(0, 1)])
    """
    if n_tokens <= FIRST + window:
        return [(min(FIRST, n_tokens - 1), n_tokens)]
    # Counted from the end, where what was read last decides what is written next.
    stops = range(n_tokens, FIRST + window - 1, -stride)
    return [(stop - window, stop) for stop in reversed(stops)]


class HeadSums:
    """Running sums of what heads hold in ordinary prompts."""

    def __init__(self) -> None:
        self.n: dict[int, int] = {}
        self.sums: dict[int, Float[Tensor, "head d_head"]] = {}
        self.products: dict[int, Float[Tensor, "head d_head d_head"]] = {}

    def add(self, z: Mapping[int, Float[Tensor, "pos head d_head"]]) -> None:
        """Count one prompt in."""
        zero = torch.zeros(1, dtype=torch.double)
        for layer, each in z.items():
            activation = each[FIRST:].double().cpu()
            self.n[layer] = self.n.get(layer, 0) + len(activation)
            self.sums[layer] = self.sums.get(layer, zero) + activation.sum(0)
            product = torch.einsum("phi,phj->hij", activation, activation)
            self.products[layer] = self.products.get(layer, zero) + product

    def readout(self, lenses: Lenses, *, window: int, stride: int) -> Readout:
        """For each head the directions in which what its lens says varies most.

        A head's lens says ``softmax(W_U (A z + b) + c)``. To second order, the divergence between
        what it says at z and at z' is ``(z - z')^T G (z - z') / 2`` with ``G = A F A^T`` and F the
        covariance of the token vectors (rows of W_U) under the baseline lens: the Fisher metric of
        the lens (Amari, 2016, "Information Geometry and Its Applications", section 2.1). With R a
        square root of G, plain lengths in ``y = z R`` are nats. The directions are the principal
        components of y. What a lens does not hear has no length and does not count. No logits are
        made.
        """
        usual, reader = {}, {}
        for layer, root in lens_roots(lenses).items():
            mean = self.sums[layer] / self.n[layer]
            both = torch.einsum("hi,hj->hij", mean, mean)
            heard = root.transpose(1, 2) @ (self.products[layer] / self.n[layer] - both) @ root
            directions = torch.linalg.eigh(heard).eigenvectors[..., -N_NUMBERS:]
            usual[layer] = mean.float()
            reader[layer] = (root @ directions).float()
        return Readout(usual, reader, window, stride)


def lens_roots(lenses: Lenses) -> dict[int, Float[Tensor, "head d_head d_head"]]:
    """For each lens a square root of its Fisher metric at the baseline lens."""
    by_layer = {}
    for layer, lens in lenses.by_layer.items():
        if not isinstance(lens, HeadLens):
            raise UsageError(
                f"a guard reads {HeadLens.kind} lenses, and these are {lens.kind} lenses",
                hint="fit lenses with `saccade lens fit --kind head`",
            )
        by_layer[layer] = lens.weight
    vectors = lenses.model.unembedding.weight.float()
    chance = lenses.baseline.float().softmax(-1).to(vectors.device)
    mean = chance @ vectors
    # Weighed rows, so that the product holds no second vocabulary x d_model matrix for long.
    spread = (vectors * chance[:, None]).T @ vectors - torch.outer(mean, mean)
    return {
        layer: _root(weight @ spread @ weight.transpose(1, 2)) for layer, weight in by_layer.items()
    }


def _root(metric: Float[Tensor, "head d_head d_head"]) -> Float[Tensor, "head d_head d_head"]:
    if not bool(metric.isfinite().all()):
        raise LensError(
            "the lenses are not finite, so a guard cannot read them",
            hint="fit them again with `saccade lens fit`",
        )
    values, vectors = torch.linalg.eigh(metric.detach().double().cpu())
    return vectors * values.clamp_min(0).sqrt()[:, None]


# Median absolute deviations of a normal variable are this much smaller than its deviation.
NORMAL_MAD = 1.4826
# Deviations beyond which a single feature counts no more: one odd token is not an attack.
FARTHEST = 5.0
# Of the squared weights, beside a mean loss. Tried with tasks and topics of the fitting side left
# out: a third or three times of it is as good.
RIDGE = 0.1
STEPS = 100  # of the optimiser; the loss has come to rest long before


@dataclass(frozen=True)
class Discriminant:
    """A linear score of a stretch, learnt from prompts of which one stretch is enough.

    Multiple-instance logistic regression: which stretch of a prompt is the request is not told.
    The log odds of a prompt are the soft maximum of those of its stretches, as in Ray and Craven,
    2005 (https://doi.org/10.1145/1102351.1102439), section 3. Unlike there it is the plain
    log-sum-exp; features are standardised by median and deviation of ordinary stretches, and
    clipped.
    """

    centre: Float[Tensor, " feature"]
    scale: Float[Tensor, " feature"]
    mean: Float[Tensor, " feature"]
    """Of ordinary stretches, standardised and clipped."""
    weight: Float[Tensor, " feature"]
    bias: float

    @classmethod
    def fit(
        cls, prompts: Sequence[Float[Tensor, "_ feature"]], has_request: Bool[Tensor, " prompt"]
    ) -> Discriminant:
        """The least ridged logistic loss, by L-BFGS from zero on.

        Args:
            prompts: The stretches of each.
        """
        sizes = torch.tensor([len(each) for each in prompts])
        owner = torch.arange(len(prompts)).repeat_interleave(sizes)
        points = torch.cat(list(prompts)).float()
        ordinary = points[~has_request[owner]]
        centre = ordinary.median(0).values
        spread = (ordinary - centre).abs().median(0).values * NORMAL_MAD
        # A feature that never changes is left as it is; any change of it would be infinite.
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        points.sub_(centre).div_(scale).clamp_(-FARTHEST, FARTHEST)  # in place: there are many
        weight, bias = _regress(points, owner, has_request)
        mean = points[~has_request[owner]].mean(0)
        return cls(centre, scale, mean, weight, bias)

    def shares(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, "n feature"]:
        """What each feature adds to the log odds, from the mean of ordinary stretches on."""
        away = _standard(points.float(), self.centre, self.scale) - self.mean
        return away * self.weight

    def log_odds(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, " n"]:
        """Of each stretch, that its prompt has a request in it."""
        return _standard(points.float(), self.centre, self.scale) @ self.weight + self.bias


def soft_maximum(
    scores: Float[Tensor, " point"], owner: Int[Tensor, " point"], *, n: int
) -> Float[Tensor, " prompt"]:
    """``log sum exp`` of the scores of each prompt.

    Args:
        owner: Whose score each is; in order.

    >>> soft_maximum(torch.tensor([0.0, 0.0, 7.0]), torch.tensor([0, 0, 1]), n=2)
    tensor([0.6931, 7.0000])
    """
    most = scores.new_full((n,), -torch.inf).scatter_reduce(0, owner, scores.detach(), "amax")
    sums = torch.zeros_like(most).index_add(0, owner, (scores - most[owner]).exp())
    return most + sums.log()


def _regress(
    points: Float[Tensor, "point feature"],
    owner: Int[Tensor, " point"],
    has_request: Bool[Tensor, " prompt"],
) -> tuple[Float[Tensor, " feature"], float]:
    sign = torch.where(has_request, 1.0, -1.0)
    weight = torch.zeros(points.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        odds = soft_maximum(points @ weight + bias, owner, n=len(sign))
        loss = softplus(-sign * odds).mean() + RIDGE * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)  # pyright: ignore[reportArgumentType]
    return weight.detach(), float(bias.detach())


def _standard(points: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
    return ((points - centre) / scale).clamp(-FARTHEST, FARTHEST)
