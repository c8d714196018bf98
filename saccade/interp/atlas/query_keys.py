"""Why heads look where they look: queries and keys of attended against unattended pairs.

Lee et al., 2026, "Decomposing Query-Key Feature Interactions Using Contrastive Covariances"
(https://arxiv.org/abs/2602.04752): the cross-covariance of queries and keys over the pairs that
have a feature in common, minus that over pairs that have not, is of low rank, and its singular
vectors are the directions in which queries and keys find each other. There the pairs are built for
a feature that is known in advance. Here nothing is: the head's own attention says which pairs
belong together,

    ``C = sum_qk w_qk q k^T - sum_qk u_qk q k^T``,

where ``w`` is the attention without the first position (the sink), and ``u`` the same weight of
each query spread evenly over all keys that it may attend to. A contrast with ``1 - w`` instead of
``u`` would have the same direction for each query, only larger where most of the few keys are
attended; and it has no value for a query with a single key. Both sums of a query have the same
mass, so that what all keys have in common drops out, as it does in the softmax.

Position: a query is taken before position, and a key as that query sees it, turned by the distance
between the two. Their product is then exactly the score (up to its scale), so that every part of a
direction is a part of the score; a contrast of queries and keys that both still have the position
of the text would average them over all angles, and one without any position knows nothing of
"the token before". So directions of both kinds are found, and `Direction.position_share` tells them
apart.

What it cannot show: a direction that matters for few queries drowns in those of many; content that
is matched in rotary planes that turn fast averages out over distances, as it does for the head;
numbers that the model adds to scores (ALiBi) are in no query or key. And a direction is an
association: `saccade heads edge` says which parts of the stream make one score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from saccade.interp.atlas.looks import UNIT, Sums
from saccade.interp.heads.head_weights import head_weights, rotations
from saccade.interp.lenses.batches import row_hashes

if TYPE_CHECKING:
    from saccade.interp.heads.attention_weights import KernelInput
    from saccade.interp.heads.model import LanguageModel

HELD_OUT = 8  # one window in so many is left out of the sums
# Products of queries and keys are larger than weights: their sums are stored in units of 2^-16, so
# that 2^26 queries fit whose products are 2^16 (`saccade.interp.atlas.looks.LARGEST`).
SCALE = 2.0**-8
FORBIDDEN = -3e4  # a mask that adds less than this to a score forbids the pair
ATTENDED, UNATTENDED, MASS = "pairs.attended", "pairs.unattended", "pairs.mass"


class Turn(NamedTuple):
    """What position does to the queries of a layer, and back (`Rotations.query`)."""

    there: Float[Tensor, "pos d_head d_head"]
    back: Float[Tensor, "pos d_head d_head"]


@torch.no_grad()
def turns_of(
    model: LanguageModel, layers: Sequence[int], ids: Int[Tensor, "1 pos"]
) -> dict[int, Turn]:
    """What position does to the queries of some layers, in texts as long as this one.

    Raises:
        ModelError: the weights of the heads are not found.
    """
    found = rotations(model, list(head_weights(model, layers).values()), ids)
    known: dict[int, Turn] = {}
    for each in found.values():  # most models turn all layers alike
        if id(each) not in known:
            known[id(each)] = Turn(each.query, each.inverse().query)
    return {layer: known[id(each)] for layer, each in found.items()}


def held_out(windows: Int[Tensor, "window pos"]) -> Bool[Tensor, " window"]:
    """Windows that the sums leave out; it depends on their tokens alone."""
    return row_hashes(windows) % HELD_OUT == 0


class Pairs(NamedTuple):
    """Queries and keys of some heads of one layer in some windows, and the weight of each pair."""

    query: Float[Tensor, "batch head query_pos d_head"]
    """Before position."""
    key: Float[Tensor, "batch head key_pos d_head"]
    """As the kernel gets them."""
    attended: Float[Tensor, "batch head query_pos key_pos"]
    """The attention of queries that are text, without the first position."""
    unattended: Float[Tensor, "batch head query_pos key_pos"]
    """The same weight of each query, spread evenly over the keys it may attend to."""
    turn: Turn

    @classmethod
    def of(
        cls,
        kernel: KernelInput,
        weights: Float[Tensor, "batch all_heads query_pos key_pos"],
        heads: Sequence[int],
        is_text: Bool[Tensor, "batch query_pos"],
        turn: Turn,
    ) -> Pairs:
        """Those of one layer's kernel."""
        n_heads, n_keys = kernel.query.shape[1], kernel.key.shape[1]
        query = kernel.query[:, list(heads)].float()
        key = kernel.key[:, [head * n_keys // n_heads for head in heads]].float()
        turn = Turn(*(each[: query.shape[2]].to(query) for each in turn))
        may = _may_attend(kernel, heads)
        may = may & is_text.to(may.device)[:, None, :, None]
        attended = weights[:, list(heads)].float() * may
        share = attended.sum(-1, keepdim=True) / may.sum(-1, keepdim=True).clamp_min(1)
        plain = torch.einsum("bhpd,pde->bhpe", query, turn.back)
        return cls(plain, key, attended, may * share, turn)

    def cross(
        self, weights: Float[Tensor, "batch head query_pos key_pos"]
    ) -> Float[Tensor, "head d_head d_head"]:
        """``sum_qk w_qk q k^T``, each key as the query sees it: two products of matrices."""
        seen = torch.einsum("bhpe,pde->bhpd", weights @ self.key, self.turn.there)
        return torch.einsum("bhpd,bhpe->hde", self.query, seen)


def pair_sums(pairs: Pairs) -> dict[str, Tensor]:
    """The sums of one layer and some windows, a row a head."""
    return {
        ATTENDED: pairs.cross(pairs.attended) * SCALE,
        UNATTENDED: pairs.cross(pairs.unattended) * SCALE,
        MASS: pairs.attended.sum((0, 2, 3)),
    }


def stacked(by_layer: Sequence[Tensor]) -> Tensor:
    """The sums of all layers, a row a head; smaller heads get zeros at the end."""
    if by_layer[0].dim() < 3:
        return torch.cat(list(by_layer))
    width = max(each.shape[-1] for each in by_layer)
    return torch.cat([pad(each, (0, width - each.shape[-1]) * 2) for each in by_layer])


def _may_attend(
    kernel: KernelInput, heads: Sequence[int]
) -> Bool[Tensor, "#batch #head query_pos key_pos"]:
    """Which keys a query may attend to, the first position left out."""
    n_queries, n_keys = kernel.query.shape[2], kernel.key.shape[2]
    may = torch.ones(n_queries, n_keys, dtype=torch.bool, device=kernel.query.device)
    may = may.tril(n_keys - n_queries)[None, None]
    if kernel.mask is not None:
        mask = kernel.mask[..., :n_keys]
        mask = mask if mask.shape[1] == 1 else mask[:, list(heads)]
        may = may & (mask if mask.dtype == torch.bool else mask > FORBIDDEN)
    may = may.clone()
    may[..., 0] = False
    return may


class Contrast(NamedTuple):
    """The leading directions of the heads of an atlas, from its sums."""

    query: Float[Tensor, "head d_head direction"]
    """Orthonormal directions of queries."""
    key: Float[Tensor, "head d_head direction"]
    """Of keys, as the query sees them."""
    share: Float[Tensor, "head direction"]
    """Of the squared contrast."""
    gap: Float[Tensor, "head direction"]
    """How much higher attended pairs score by this direction than unattended ones, on average;
    without the scale of the scores."""
    whole_gap: Float[Tensor, " head"]
    """The same of all directions."""

    @property
    def filter(self) -> Float[Tensor, "head d_head d_head"]:
        """The map of queries with which the score is that of the directions alone.

        Of the query it keeps the part in its directions, and of that the part in those of the keys.
        """
        return self.query @ (self.query.mT @ self.key) @ self.key.mT


def contrasts(sums: Sums, n: int, *, is_plain: bool = False) -> Contrast:
    """The ``n`` leading directions of every head.

    Args:
        is_plain: of attended pairs alone, not of the contrast: a control.
    """
    mass = (sums[MASS].double() / UNIT).clamp_min(1e-9)[:, None, None]
    attended, unattended = (
        sums[name].double() / (UNIT * SCALE) / mass for name in (ATTENDED, UNATTENDED)
    )
    matrix = attended if is_plain else attended - unattended
    left, size, right = torch.linalg.svd(matrix)
    left, right = left[..., :n], right.mT[..., :n]
    squared = size.square()
    return Contrast(
        left.float(),
        right.float(),
        (squared[:, :n] / squared.sum(1, keepdim=True).clamp_min(1e-30)).float(),
        (size[:, :n] * (left * right).sum(1)).float(),
        matrix.diagonal(dim1=1, dim2=2).sum(1).float(),
    )
