"""Heads found on one half of some items and measured on the other, beside their neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.studies.suites.suite import Row, SuiteConfig, beside_control, interval, row

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.studies.suites.name_circuit import Site


class HeldOut(NamedTuple):
    """Heads found on each half of the items, and what is measured on the other half."""

    halves: tuple[Int[Tensor, " first"], Int[Tensor, " second"]]
    """Which items, as numbers."""
    heads: tuple[list[int], list[int]]
    """Found on the first half, and on the second."""

    @classmethod
    def of(cls, scores: Float[Tensor, "item site"], n: int, *, seed: int) -> HeldOut:
        """The ``n`` heads with the largest mean scores on each half."""
        halves = halves_of(len(scores), seed=seed)
        return cls(halves, (largest_of(scores[halves[0]], n), largest_of(scores[halves[1]], n)))

    def measured(
        self, values: Float[Tensor, "item site"], layer: Float[Tensor, " site"]
    ) -> tuple[Float[Tensor, " item"], Float[Tensor, " item"]]:
        """Each item: the mean over the heads found without it, and over others of their layers."""
        own, control = torch.zeros(len(values)), torch.zeros(len(values))
        for half, heads in zip(self.halves, self.heads[::-1], strict=True):
            own[half] = values[half][:, heads].mean(1)
            beside = [others_of(head, heads, layer) for head in heads]
            control[half] = torch.stack([values[half][:, each].mean(1) for each in beside]).mean(0)
        return own, control

    @property
    def overlap(self) -> float:
        """Heads found on both halves, of those found on either."""
        first, second = (set(each) for each in self.heads)
        return len(first & second) / len(first | second)


def halves_of(n: int, *, seed: int) -> tuple[Int[Tensor, " first"], Int[Tensor, " second"]]:
    """The numbers of items in two halves, at random."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return order[: n // 2].sort().values, order[n // 2 :].sort().values


def largest_of(scores: Float[Tensor, "item site"], n: int) -> list[int]:
    """The heads with the largest mean scores."""
    return scores.mean(0).topk(min(n, scores.shape[1])).indices.tolist()


def others_of(head: int, heads: Sequence[int], layer: Float[Tensor, " site"]) -> list[int]:
    """Heads of the same layer that are not among ``heads``; none: the mean is no number then."""
    same = (layer == layer[head]).nonzero()[:, 0].tolist()
    return [each for each in same if each not in heads]


class RoleRows:
    """Rows of one data set, whose items are averaged over their prompts."""

    def __init__(self, model: LanguageModel, data: str, config: SuiteConfig) -> None:
        self.data, self.seed = data, config.seed
        self.sites: list[Site] = [(at.index, h) for at in model.layers for h in range(at.n_heads)]
        self.layer = torch.tensor([float(layer) for layer, _ in self.sites])
        self.rows: list[Row] = []

    def add(self, method: str, metric: str, values: Float[Tensor, " item"]) -> None:
        """A metric of the model itself."""
        found = interval(values, seed=self.seed)
        self.rows.append(row(self.data, method, metric, found, len(values)))

    def held_out(
        self, method: str, metric: str, found: HeldOut, values: Float[Tensor, "item site"]
    ) -> None:
        """A metric of the heads found on the other half, beside others of their layers."""
        own, control = found.measured(values, self.layer)
        plain = row(self.data, method, metric, interval(own, seed=self.seed), len(own))
        if bool(control.isfinite().all()):
            plain = beside_control(plain, own, control, seed=self.seed)
        self.rows.append(plain)

    def stability(self, method: str, found: HeldOut) -> None:
        """The share of heads that both halves find."""
        n = sum(map(len, found.halves))
        metric = "heads of both halves / of either"
        self.rows.append(
            Row(data=self.data, method=method, metric=metric, value=found.overlap, n=n)
        )

    def names(self, heads: Sequence[int]) -> str:
        """Heads as text."""
        return ", ".join(f"{self.sites[each][0]}.{self.sites[each][1]}" for each in heads)


def by_item(
    values: Float[Tensor, " prompt *more"], item: Int[Tensor, " prompt"]
) -> Float[Tensor, " item *more"]:
    """The mean over the prompts of each item, items in the order of their numbers."""
    _, at = item.unique(return_inverse=True)
    n = torch.bincount(at).float()
    total = torch.zeros(len(n), *values.shape[1:]).index_add_(0, at, values.float())
    return total / n.view(-1, *[1] * (values.dim() - 1))
