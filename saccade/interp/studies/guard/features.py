"""The features of a guard, and the discriminant that scores the spans of a prompt."""

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


# The features of a guard: a few numbers per head for each span of a prompt.

FIRST = 1  # heads attend to the first token by default: its activations are outliers
# Per head. One, chosen to separate requests from other text, generalises much worse to new tasks
# and texts (measured by leaving out tasks and topics of the fitting data). Twelve are no better.
N_NUMBERS = 8


class Points(NamedTuple):
    """The spans of one prompt, and the features of each."""

    features: Float[Tensor, "point feature"]
    """The numbers of the first head, then those of the second, and so on."""
    spans: list[tuple[int, int]]
    """First token of each span, and the one after its last."""


@dataclass(frozen=True)
class Readout:
    """Maps the activations at a token to some numbers per head."""

    usual: Mapping[int, Float[Tensor, "head d_head"]]
    """By layer: the mean activation of each head in ordinary prompts."""
    reader: Mapping[int, Float[Tensor, "head d_head number"]]
    """By layer: the directions onto which it is projected."""
    window: int
    """Tokens per span."""
    stride: int
    """Tokens from the start of a span to the start of the next."""

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
        """The means of these numbers over the spans of a prompt."""
        numbers = self.tokens(z)
        spans = span_bounds(len(numbers), window=self.window, stride=self.stride)
        sums = pad(numbers.double().cumsum(0), (0, 0, 1, 0))
        start, stop = torch.tensor(spans).T
        return Points((sums[stop] - sums[start]) / (stop - start)[:, None], spans)


def span_bounds(n_tokens: int, *, window: int, stride: int) -> list[tuple[int, int]]:
    """The start and end of each span of a text; the last one ends with the text.

    >>> span_bounds(12, window=5, stride=3)
    [(1, 6), (4, 9), (7, 12)]
    >>> span_bounds(3, window=5, stride=3), span_bounds(1, window=5, stride=3)
    ([(1, 3)], [(0, 1)])
    """
    if n_tokens <= FIRST + window:
        return [(min(FIRST, n_tokens - 1), n_tokens)]
    # Counted from the end of the text, which matters most for the next token.
    stops = range(n_tokens, FIRST + window - 1, -stride)
    return [(stop - window, stop) for stop in reversed(stops)]


class HeadSums:
    """Running sums of the activations of heads in ordinary prompts."""

    def __init__(self) -> None:
        self.n: dict[int, int] = {}
        self.sums: dict[int, Float[Tensor, "head d_head"]] = {}
        self.products: dict[int, Float[Tensor, "head d_head d_head"]] = {}

    def add(self, z: Mapping[int, Float[Tensor, "pos head d_head"]]) -> None:
        """Add one prompt."""
        zero = torch.zeros(1, dtype=torch.double)
        for layer, each in z.items():
            activation = each[FIRST:].double().cpu()
            self.n[layer] = self.n.get(layer, 0) + len(activation)
            self.sums[layer] = self.sums.get(layer, zero) + activation.sum(0)
            product = torch.einsum("phi,phj->hij", activation, activation)
            self.products[layer] = self.products.get(layer, zero) + product

    def readout(self, lenses: Lenses, *, window: int, stride: int) -> Readout:
        """For each head the directions in which the prediction of its lens varies most.

        A head's lens predicts ``softmax(W_U (A z + b) + c)``. To second order, the divergence
        between its predictions at z and at z' is ``(z - z')^T G (z - z') / 2`` with ``G = A F A^T``
        and F the covariance of the token vectors (rows of W_U) under the baseline lens: the Fisher
        metric of the lens (Amari, 2016, "Information Geometry and Its Applications", section 2.1).
        With R a square root of G, plain lengths in ``y = z R`` are nats. The directions are the
        principal components of y. Directions that do not change the lens have length 0 and do not
        count. No logits are computed.
        """
        usual, reader = {}, {}
        for layer, root in lens_roots(lenses).items():
            mean = self.sums[layer] / self.n[layer]
            both = torch.einsum("hi,hj->hij", mean, mean)
            covariance = root.transpose(1, 2) @ (self.products[layer] / self.n[layer] - both) @ root
            directions = torch.linalg.eigh(covariance).eigenvectors[..., -N_NUMBERS:]
            usual[layer] = mean.float()
            reader[layer] = (root @ directions).float()
        return Readout(usual, reader, window, stride)


def lens_roots(lenses: Lenses) -> dict[int, Float[Tensor, "head d_head d_head"]]:
    """For each lens a square root of its Fisher metric at the baseline lens."""
    by_layer = {}
    for layer, lens in lenses.by_layer.items():
        if not isinstance(lens, HeadLens):
            raise UsageError(
                f"a guard needs {HeadLens.kind} lenses, got {lens.kind} lenses",
                hint="fit lenses with `saccade lens fit --kind head`",
            )
        by_layer[layer] = lens.weight
    vectors = lenses.model.unembedding.weight.float()
    chance = lenses.baseline.float().softmax(-1).to(vectors.device)
    mean = chance @ vectors
    # Weighted rows, so that only one extra vocabulary x d_model matrix is in memory.
    spread = (vectors * chance[:, None]).T @ vectors - torch.outer(mean, mean)
    return {
        layer: _root(weight @ spread @ weight.transpose(1, 2)) for layer, weight in by_layer.items()
    }


def _root(metric: Float[Tensor, "head d_head d_head"]) -> Float[Tensor, "head d_head d_head"]:
    if not bool(metric.isfinite().all()):
        raise LensError(
            "the weights of the lenses are not finite, so a guard cannot use them",
            hint="fit them again with `saccade lens fit`",
        )
    values, vectors = torch.linalg.eigh(metric.detach().double().cpu())
    return vectors * values.clamp_min(0).sqrt()[:, None]


# Median absolute deviations of a normal variable are this much smaller than its deviation.
NORMAL_MAD = 1.4826
# Features are clipped at this many deviations: one unusual token is not an attack.
FARTHEST = 5.0
# L2 penalty, relative to the mean loss. Measured by leaving out tasks and topics of the fitting
# data: a third or three times of it is as good.
RIDGE = 0.1
STEPS = 100  # of the optimiser; the loss converges long before


@dataclass(frozen=True)
class Discriminant:
    """A linear score of a span, trained with one label per prompt.

    Multiple-instance logistic regression: the label does not say which span is the request. The
    log odds of a prompt are the soft maximum of those of its spans, as in Ray and Craven,
    2005 (https://doi.org/10.1145/1102351.1102439), section 3. Unlike there it is the plain
    log-sum-exp; features are standardised by median and deviation of ordinary spans, and clipped.
    """

    centre: Float[Tensor, " feature"]
    scale: Float[Tensor, " feature"]
    mean: Float[Tensor, " feature"]
    """Mean features of ordinary spans, standardised and clipped."""
    weight: Float[Tensor, " feature"]
    bias: float

    @classmethod
    def fit(
        cls, prompts: Sequence[Float[Tensor, "_ feature"]], has_request: Bool[Tensor, " prompt"]
    ) -> Discriminant:
        """Minimise the logistic loss with an L2 penalty, by L-BFGS from zero.

        Args:
            prompts: the features of the spans of each.
        """
        sizes = torch.tensor([len(each) for each in prompts])
        owner = torch.arange(len(prompts)).repeat_interleave(sizes)
        points = torch.cat(list(prompts)).float()
        ordinary = points[~has_request[owner]]
        centre = ordinary.median(0).values
        spread = (ordinary - centre).abs().median(0).values * NORMAL_MAD
        # A constant feature keeps scale 1; a scale of 0 would make any change infinite.
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        points.sub_(centre).div_(scale).clamp_(-FARTHEST, FARTHEST)  # in place: there are many
        weight, bias = _regress(points, owner, has_request)
        mean = points[~has_request[owner]].mean(0)
        return cls(centre, scale, mean, weight, bias)

    def shares(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, "n feature"]:
        """What each feature adds to the log odds, relative to the mean ordinary span."""
        away = _standard(points.float(), self.centre, self.scale) - self.mean
        return away * self.weight

    def log_odds(self, points: Float[Tensor, "n feature"]) -> Float[Tensor, " n"]:
        """Log odds of each span that its prompt contains a request."""
        return _standard(points.float(), self.centre, self.scale) @ self.weight + self.bias


def soft_maximum(
    scores: Float[Tensor, " point"], owner: Int[Tensor, " point"], *, n: int
) -> Float[Tensor, " prompt"]:
    """``log sum exp`` of the scores of each prompt.

    Args:
        owner: the prompt of each score; in order.

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
