"""Where heads look: attention weights of a whole text, as sums that add up over windows.

The figures are those of HeadVis (Anthropic, 2026): attention to the token itself and to the one
before, induction, entropy, distance. The first position is left out of distances and tokens,
because most heads attend to it where they have nothing to do (`first`, the attention sink).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from saccade.errors import ModelError

# Sums are stored as integers, in units of 2^-24: added in any order they are the same to the last
# bit, whatever processes or shards share the text. A weight is at most 1, so the sum of 2^34 of
# them fits, which leaves room for 32 processes to add theirs without a carry into the sign.
UNIT = 2**24
LARGEST = 2**58

Sums = dict[str, Tensor]
"""By name: sums over all queries of all windows, in units of `UNIT`."""


def look_sums(
    weights: Float[Tensor, "batch head query_pos key_pos"],
    ids: Int[Tensor, "batch pos"],
    token: Int[Tensor, "batch pos"],
    is_text: Bool[Tensor, "batch pos"],
    *,
    n_tokens: int,
) -> dict[str, Tensor]:
    """The sums of one layer and some windows, a row a head, over the queries that are text.

    Args:
        ids: the tokens.
        token: the number of each among the ``n_tokens`` distinct tokens of the whole text.
    """
    n = ids.shape[1]
    weights = weights.float() * is_text[:, None, :, None]
    first = weights[..., 0]  # [batch, head, query_pos]
    log = weights.clamp_min(1e-30).log()
    rest = weights.clone()
    rest[..., 0] = 0  # the first key is left out from here on
    by_distance = skewed(rest.sum(0)).sum(1)  # [head, distance]
    repeated = _after_same(ids) & is_text[:, :, None]  # [batch, query_pos, key_pos]
    received, given = rest.sum(2), rest.sum(3)  # [batch, head, key_pos], [batch, head, query_pos]
    flat = token.flatten()
    by_key, by_query = (
        weights.new_zeros(weights.shape[1], n_tokens).index_add_(
            1, flat, each.transpose(0, 1).flatten(1)
        )
        for each in (received, given)
    )
    return {
        "first": first.sum((0, 2)),
        "entropy": -(weights * log).sum((0, 2, 3)),
        "distance": by_distance[:, :n],
        "induction": (rest * repeated[:, None]).sum((0, 2, 3)),
        "key_token": by_key,
        "query_token": by_query,
    }


def count_sums(
    ids: Int[Tensor, "batch pos"],
    token: Int[Tensor, "batch pos"],
    is_text: Bool[Tensor, "batch pos"],
    *,
    n_tokens: int,
) -> dict[str, Tensor]:
    """What the sums are divided by: queries, queries after a repeated token, and tokens."""
    repeated = (_after_same(ids) & is_text[:, :, None]).any(2)
    return {
        "queries": is_text.sum().float(),
        "repeated_queries": repeated.sum().float(),
        "query_count": torch.bincount(token[is_text], minlength=n_tokens).float(),
        "key_count": torch.bincount(token[:, 1:].flatten(), minlength=n_tokens).float(),
    }


def skewed(weights: Float[Tensor, "head query_pos key_pos"]) -> Tensor:
    """``[head, query_pos, distance]``: each row turned so that its diagonal comes first."""
    n = weights.shape[-1]
    # Keys in reverse order: the key at distance d of query q is at n - 1 - q + d. A row longer by
    # one moves each query's keys one step to the left of those of the query before.
    flipped = pad(weights.flip(-1), (0, n))  # [head, n, 2n]
    return flipped.flatten(1)[:, : -n or None].view(len(weights), n, 2 * n - 1)[..., n - 1 :]


def _after_same(ids: Int[Tensor, "batch pos"]) -> Bool[Tensor, "batch query_pos key_pos"]:
    """True = the key comes just after an earlier occurrence of the query's token."""
    same = ids[:, :, None] == ids[:, None, :]
    found = torch.zeros_like(same)
    found[:, :, 1:] = same[:, :, :-1]
    return found.tril()  # the key after an earlier occurrence is at most the query itself


def add_to(sums: Sums, found: Mapping[str, Tensor]) -> None:
    """Add sums of some windows to those of others."""
    for name, value in found.items():
        in_units = (value.cpu().double() * UNIT).round()
        # Not finite, or too large for an integer: converted, it would be any number.
        add_whole(sums, name, in_units.clamp(-LARGEST, LARGEST).nan_to_num(LARGEST).long())


def add_whole(sums: Sums, name: str, whole: Tensor) -> None:
    """Add a sum in units of `UNIT`.

    Raises:
        ModelError: it has become too large to be exact.
    """
    total = sums[name] + whole if name in sums else whole
    if total.numel() and int(total.abs().max()) >= LARGEST:
        raise ModelError(
            f"a sum over the text is too large to be exact ({name}): at most 2^34 fits",
            hint="give less text, or open the model with a wider dtype if it overflows",
        )
    sums[name] = total


class TokenWeight(NamedTuple):
    """A token, and its weight: attention per occurrence."""

    token: int
    weight: float
    occurrences: int
    """In the text."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Where one head looks, on average over the text."""

    first: float
    """Mean weight on the first position."""
    self_weight: float
    """Mean weight on the query's own position."""
    previous: float
    """Mean weight on the position before."""
    induction: float
    """Mean weight on keys just after earlier occurrences of the query's token, over the queries
    that have some."""
    entropy: float
    """Of the weights, in nats."""
    distance: float
    """Mean distance of the keys, the first position left out."""
    distance_variance: float


def looks_of(sums: Sums) -> list[Look]:
    """The figures of all heads."""
    n = sums["queries"].double() / UNIT
    repeated = (sums["repeated_queries"].double() / UNIT).clamp_min(1)
    by_distance = sums["distance"].double() / UNIT  # [head, distance]
    distances = torch.arange(by_distance.shape[1]).double()
    mass = by_distance.sum(1).clamp_min(1e-9)
    mean = by_distance @ distances / mass
    variance = (by_distance @ distances**2 / mass - mean**2).clamp_min(0)
    columns = {
        "first": sums["first"].double() / UNIT / n,
        "self_weight": by_distance[:, 0] / n,
        "previous": by_distance[:, 1] / n,
        "induction": sums["induction"].double() / UNIT / repeated,
        "entropy": sums["entropy"].double() / UNIT / n,
        "distance": mean,
        "distance_variance": variance,
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [Look(**dict(zip(columns, row, strict=True))) for row in rows]


def histogram(sums: Sums, head: int) -> list[float]:
    """The share of a head's attention at each distance, the first position left out."""
    row = sums["distance"][head].double()
    return (row / row.sum().clamp_min(1)).tolist()


def top_tokens(
    sums: Sums,
    kind: Literal["key", "query"],
    head: int,
    *,
    ids: Sequence[int],
    n: int,
    least: int = 3,
) -> list[TokenWeight]:
    """The tokens with the largest attention per occurrence.

    Args:
        kind: "key", how much attention an occurrence gets in all, or "query", how much of its
            attention an occurrence gives to other positions than the first.
        ids: the distinct tokens of the text.
        least: rarer tokens are left out: the mean over few occurrences is mostly chance.
    """
    count = sums[f"{kind}_count"].double() / UNIT
    weight = sums[f"{kind}_token"][head].double() / UNIT / count.clamp_min(1)
    weight[count < least] = -1
    best = weight.topk(min(n, len(weight)))
    return [
        TokenWeight(ids[at], value, int(count[at]))
        for at, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        if value > 0
    ]
