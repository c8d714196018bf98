"""What the heads say over a prompt, in a few numbers a head: the features of a guard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from saccade.errors import LensError, UsageError
from saccade.lenses.head_lens import HeadLens

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses

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
            held = each[FIRST:].double().cpu()
            self.n[layer] = self.n.get(layer, 0) + len(held)
            self.sums[layer] = self.sums.get(layer, zero) + held.sum(0)
            product = torch.einsum("phi,phj->hij", held, held)
            self.products[layer] = self.products.get(layer, zero) + product

    def readout(self, lenses: Lenses, *, window: int, stride: int) -> Readout:
        """For each head the directions in which what its lens says varies most.

        A head's lens says ``softmax(W_U (A z + b) + c)``. To second order, the divergence between
        what it says at z and at z' is ``(z - z')^T G (z - z') / 2`` with ``G = A F A^T`` and F the
        covariance of the word vectors (rows of W_U) under the constant lens: the Fisher metric of
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
    if not bool(metric.isfinite().all()):
        raise LensError(
            "the lenses are not finite, so a guard cannot read them",
            hint="fit them again with `saccade lens fit`",
        )
    values, vectors = torch.linalg.eigh(metric.detach().double().cpu())
    return vectors * values.clamp_min(0).sqrt()[:, None]
