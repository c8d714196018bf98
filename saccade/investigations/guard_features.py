"""What the heads say over a prompt, in one number a head: the features of a guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize, pad

from saccade.errors import UsageError
from saccade.lenses.head_lens import HeadLens

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses

FIRST = 1  # heads rest on the first token of a text: what they hold there is like nothing else
# Of the mean variance, added to all directions of a head: so that those in which it hardly moves
# are not trusted. Tried on the fitting side's templates.
SHRUNK = 0.1


class Points(NamedTuple):
    """Stretches of one prompt, and what the heads say over each of them."""

    features: Float[Tensor, "point site"]
    spans: list[tuple[int, int]]
    """First token of each stretch, and the one after its last."""


@dataclass(frozen=True)
class Readout:
    """From what heads hold at a token to one number for each of them."""

    usual: Mapping[int, Float[Tensor, "head d_head"]]
    """By layer: the mean of what each head holds in ordinary prompts."""
    reader: Mapping[int, Float[Tensor, "head d_head"]]
    """By layer: the direction in which it is read."""
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
    ) -> Float[Tensor, "*pos site"]:
        """The number of every head at every token."""
        parts = [
            torch.einsum("...hi,hi->...h", z[layer].float().cpu() - usual, self.reader[layer])
            for layer, usual in self.usual.items()
        ]
        return torch.cat(parts, -1)

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
    """Running sums of what heads hold, at tokens of requests and at all others."""

    def __init__(self) -> None:
        self.n = torch.zeros(2, dtype=torch.double)
        self.sums: dict[int, Float[Tensor, "2 head d_head"]] = {}
        self.products: dict[int, Float[Tensor, "head d_head d_head"]] = {}

    def add(
        self,
        z: Mapping[int, Float[Tensor, "pos head d_head"]],
        is_request: Bool[Tensor, " pos"],
    ) -> None:
        """Count one prompt in."""
        kinds = torch.stack([~is_request, is_request])[:, FIRST:].double()  # [2, pos]
        self.n += kinds.sum(1)
        for layer, each in z.items():
            held = each[FIRST:].double().cpu()
            zero = torch.zeros(1, dtype=torch.double)
            self.sums[layer] = self.sums.get(layer, zero) + torch.einsum("kp,phi->khi", kinds, held)
            product = torch.einsum("phi,phj->hij", held, held)
            self.products[layer] = self.products.get(layer, zero) + product

    def readout(self, lenses: Lenses, *, window: int, stride: int) -> Readout:
        """For each head the direction that tells requests best from other text, as its lens hears.

        A head's lens says ``softmax(W_U (A z + b) + c)``. To second order, the divergence between
        what it says at z and at z' is ``(z - z')^T G (z - z') / 2`` with ``G = A F A^T`` and F the
        covariance of the word vectors (rows of W_U) under the constant lens: the Fisher metric of
        the lens (Amari, 2016, "Information Geometry and Its Applications", section 2.1). With R a
        square root of G, plain lengths in ``y = z R`` are nats. There the direction is Fisher's
        (1936, https://doi.org/10.1111/j.1469-1809.1936.tb02137.x): ``C^-1 (m_1 - m_0)``, with C
        the covariance within the two kinds of tokens, shrunk. What a lens does not hear, however
        telling, has no length and does not count. No logits are made.
        """
        usual, reader = {}, {}
        for layer, root in lens_roots(lenses).items():
            means = self.sums[layer] / self.n[:, None, None]
            both = torch.einsum("k,khi,khj->hij", self.n, means, means)
            within = (self.products[layer] - both) / self.n.sum()  # [head, d_head, d_head]
            heard = root.transpose(1, 2) @ within @ root
            level = heard.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)[:, None, None]
            steady = (1 - SHRUNK) * heard + SHRUNK * level * torch.eye(len(heard[0])).double()
            apart = torch.einsum("hi,hij->hj", means[1] - means[0], root)
            direction = normalize(torch.linalg.solve(steady, apart[..., None])[..., 0], dim=-1)
            usual[layer] = means[0].float()
            reader[layer] = torch.einsum("hij,hj->hi", root, direction).float()
        return Readout(usual, reader, window, stride)


def lens_roots(lenses: Lenses) -> dict[int, Float[Tensor, "head d_head d_head"]]:
    """For each lens a square root of its Fisher metric at the constant lens."""
    by_layer = {}
    for layer, lens in lenses.by_layer.items():
        if not isinstance(lens, HeadLens):
            raise UsageError(
                f"a guard reads {HeadLens.kind} lenses, and these are {lens.kind} lenses",
                hint="fit lenses with `saccade lens fit --kind head`",
            )
        by_layer[layer] = lens.weight
    vectors = lenses.model.unembedding.weight.float()
    chance = lenses.constant.float().softmax(-1).to(vectors.device)
    mean = chance @ vectors
    # Weighed rows, so that the product holds no second vocabulary x d_model matrix for long.
    spread = (vectors * chance[:, None]).T @ vectors - torch.outer(mean, mean)
    return {
        layer: _root(weight @ spread @ weight.transpose(1, 2)) for layer, weight in by_layer.items()
    }


def _root(metric: Float[Tensor, "head d_head d_head"]) -> Float[Tensor, "head d_head d_head"]:
    values, vectors = torch.linalg.eigh(metric.detach().double().cpu())
    return vectors * values.clamp_min(0).sqrt()[:, None]
