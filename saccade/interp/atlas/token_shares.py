"""Which tokens each head promotes, suppresses or predicts over the whole text, and how specially.

At each sampled position a head's effect (its KL) is shared among the tokens that it promotes, in
proportion to the change of their log-probability. A token's share is what it gets of the head's
whole effect; beside it stands its average share over all heads, because tokens that are common in
the text are promoted by many.

Effects have heavy tails: in SmolLM2-135M the median head has 28 % of its effect at one position in
a hundred, and a list of tokens by raw effects is the list of a few positions. So no position counts
for more than the 98th percentile of the head's effects. In SmolLM2-135M the ten first tokens of two
halves of a text overlap by 0.76 with this limit and by 0.51 without (`bench/atlas.py`); the limit
was chosen by this overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas
    from saccade.interp.atlas.records import Records

MOST = 0.98
"""No position counts for more than this quantile of the head's effects."""
Kind: TypeAlias = Literal["promoted", "suppressed", "predicted"]


class TokenShare(NamedTuple):
    """A token of a head."""

    id: int
    text: str
    share: float
    """Of the head's effect."""
    average: float
    """Its share of the effect of all heads, on average."""
    positions: int
    """Where the head promotes it, among its first tokens."""


class TokenShares(NamedTuple):
    """The shares of all tokens, of all heads."""

    ids: Int[Tensor, " token"]
    share: Float[Tensor, "head token"]
    positions: Int[Tensor, "head token"]

    @property
    def average(self) -> Float[Tensor, " token"]:
        """Of all heads."""
        return self.share.mean(0)

    def special(self, n: int) -> Int[Tensor, "head token"]:
        """The numbers of the tokens that tell each head best from the others.

        They have the largest terms of the KL of the head's shares from the average ones.
        """
        terms = self.share * (self.share.clamp_min(1e-12) / self.average.clamp_min(1e-12)).log()
        return terms.topk(min(n, terms.shape[1]), dim=1).indices

    def top(self, n: int) -> Int[Tensor, "head token"]:
        """The numbers of the tokens with the largest shares of each head."""
        return self.share.topk(min(n, self.share.shape[1]), dim=1).indices


def token_shares(atlas: Atlas, kind: Kind, *, rows: Int[Tensor, " n"] | None = None) -> TokenShares:
    """The shares of the tokens of all heads.

    Args:
        kind: "promoted" and "suppressed" share the effect, "predicted" the KL of the lens from
            the baseline.
        rows: of these records only.
    """
    records = atlas.records if rows is None else atlas.records.of(rows)
    ids, part = effect_parts(records, kind)
    n_heads = ids.shape[1]
    # As `unique` with the inverse, without sorting millions of tokens.
    is_seen = torch.zeros(int(ids.max()) + 1 if ids.numel() else 1, dtype=torch.bool)
    is_seen[ids.flatten()] = True
    distinct = is_seen.nonzero()[:, 0]
    number = (is_seen.cumsum(0) - 1)[ids]
    by_head = number.transpose(0, 1).flatten(1)  # [head, n * top]
    values = part.transpose(0, 1).flatten(1)
    weight = torch.zeros(n_heads, len(distinct)).scatter_add_(1, by_head, values)
    positions = torch.zeros(n_heads, len(distinct), dtype=torch.int32).scatter_add_(
        1, by_head, (values > 0).int()
    )
    share = weight / weight.sum(1, keepdim=True).clamp_min(1e-12)
    return TokenShares(distinct, share, positions)


def effect_parts(
    records: Records, kind: Kind
) -> tuple[Int[Tensor, "n head top"], Float[Tensor, "n head top"]]:
    """The tokens of each position, and the part of the effect there that each of them gets."""
    ids: Tensor = getattr(records, kind).long()
    change = getattr(records, f"{kind}_by").float()
    change = (-change if kind == "suppressed" else change).clamp_min(0)
    effect = limited_effect(records.lens_kl.float() if kind == "predicted" else records.kl)
    return ids, change / change.sum(-1, keepdim=True).clamp_min(1e-12) * effect[..., None]


def limited_effect(effect: Float[Tensor, "n head"]) -> Float[Tensor, "n head"]:
    """Effects, none above the quantile `MOST` of those of its head.

    >>> limited_effect(torch.tensor([[0.0]] * 96 + [[1.0], [2.0], [3.0], [50.0]])).max()
    tensor(3.)
    """
    n = len(effect)
    if n == 0:
        return effect
    return effect.clamp_max(effect.sort(0).values[min(int(MOST * n), n - 1)])


def tokens_of_head(
    atlas: Atlas, shares: TokenShares, numbers: Int[Tensor, "head token"], head: int
) -> list[TokenShare]:
    """Some tokens of one head, those that it promotes at all."""
    mine = [each for each in numbers[head].tolist() if shares.positions[head, each] > 0]
    ids = shares.ids[mine].tolist()
    columns = (
        ids,
        atlas.show(ids),
        shares.share[head, mine].tolist(),
        shares.average[mine].tolist(),
        shares.positions[head, mine].tolist(),
    )
    return [TokenShare(*each) for each in zip(*columns, strict=True)]
