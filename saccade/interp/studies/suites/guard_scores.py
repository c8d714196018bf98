"""Metrics and baselines of the suite `guard`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.interp.heads.capture import capture
from saccade.interp.studies.suites.suite import Interval, Item, interval_of

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

# Attention Tracker, section 4.1: how many deviations the kinds lie apart for an important head.
DEVIATIONS = 4.0
FEWEST_HEADS = 5  # where no head, or nearly none, is that far apart
# Set before a prompt that has no instruction of its own, as the paper does for deepset.
INSTRUCTION = "Say xxxxxx\nData: "


class Scores:
    """The scores of the items of one data set, and their metrics with intervals over groups.

    The items of one context are drawn together.
    """

    def __init__(
        self,
        scores: Float[Tensor, " item"],
        is_injected: Bool[Tensor, " item"],
        group: Int[Tensor, " item"],
        *,
        seed: int = 0,
    ) -> None:
        """Scores, labels, and which items belong together."""
        order = scores.double().argsort(descending=True)
        self.scores = scores.double()[order]
        self.is_injected = is_injected[order]
        self.group = torch.unique(group[order], return_inverse=True)[1]
        self.seed = seed

    def auroc(self) -> Interval:
        """The probability that an injected prompt scores above an ordinary one."""
        scores = self.scores
        wins = (scores[self.is_injected][:, None] > scores[~self.is_injected]).double()
        wins += 0.5 * (scores[self.is_injected][:, None] == scores[~self.is_injected])

        def statistic(counts: Float[Tensor, " group"]) -> float:
            injected, ordinary = self._counts(counts)
            return float(injected @ wins @ ordinary / (injected.sum() * ordinary.sum()))

        return self._interval(statistic)

    def recall(self, false_alarms: float) -> Interval:
        """The share of injected prompts above a threshold with at most these false alarms."""
        scores, is_injected = self.scores, self.is_injected

        def statistic(counts: Float[Tensor, " group"]) -> float:
            weights = counts[self.group]
            alarms = (weights * ~is_injected).cumsum(0) / (weights * ~is_injected).sum()
            # A threshold at a score reports all items with that score.
            last = torch.searchsorted(-scores, -scores, right=True) - 1
            passed = alarms[last] <= false_alarms + 1e-9
            recalls = (weights * is_injected).cumsum(0) / (weights * is_injected).sum()
            return float(recalls[passed].max()) if bool(passed.any()) else 0.0

        return self._interval(statistic)

    def reported(self, threshold: float, *, injected: bool) -> Interval:
        """The share of one kind above a threshold."""
        kind = self.is_injected if injected else ~self.is_injected
        above = (self.scores > threshold) & kind

        def statistic(counts: Float[Tensor, " group"]) -> float:
            weights = counts[self.group]
            return float((weights * above).sum() / (weights * kind).sum())

        return self._interval(statistic)

    def _counts(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        weights = counts[self.group]
        return weights[self.is_injected], weights[~self.is_injected]

    def _interval(self, statistic: Callable[[Float[Tensor, " group"]], float]) -> Interval:
        return interval_of(statistic, int(self.group.max()) + 1, seed=self.seed)


def attention_to_instruction(
    model: LanguageModel,
    item: Item,
    rows: Mapping[int, Float[Tensor, "1 _ 1 key_pos"]] | None = None,
) -> Float[Tensor, " site"]:
    """The share of the last token's attention to a prompt that falls on its instruction, by head.

    Attention Tracker (Hung et al., 2024, https://arxiv.org/abs/2411.00348), section 3: an injected
    instruction draws the attention of some heads away from the original one. The instruction is
    what stands around the data that an item names, or `INSTRUCTION` before an item without. Where
    we differ: no chat template, and the share is of all tokens but the first, which holds most of
    the attention of many heads (section 3 sums over the instruction, without a ratio).

    Args:
        rows: the attention of the last token by layer, where the item names its data.
    """
    text, (start, stop) = item["text"], item.get("data") or (0, len(item["text"]))
    if not item.get("data"):
        text, start, stop = INSTRUCTION + text, len(INSTRUCTION), len(INSTRUCTION) + stop
        rows = None
    if rows is None:
        rows = last_attention(model, model.encode(text))
    # Up to one token: the data may begin inside of one.
    first, last = (model.encode(text[:end]).shape[1] if end else 0 for end in (start, stop))
    seen = torch.cat([rows[layer.index][0, :, 0].double().cpu() for layer in model.layers])
    in_data = seen[:, max(first, 1) : last].sum(-1)
    return 1 - in_data / seen[:, 1:].sum(-1).clamp_min(1e-12)


def last_attention(
    model: LanguageModel, ids: Int[Tensor, "1 pos"]
) -> Mapping[int, Float[Tensor, "1 _ 1 key_pos"]]:
    """The attention of the last token, by layer."""
    return capture(
        model,
        ids,
        layers=(),
        attention=[layer.index for layer in model.layers],
        attention_positions=[ids.shape[1] - 1],
    ).attention


def important_heads(
    ordinary: Float[Tensor, "item head"], injected: Float[Tensor, "item head"]
) -> Bool[Tensor, " head"]:
    """The heads whose attention to the instruction drops most under an injection.

    Attention Tracker, section 4.1, equation 2: mean less k deviations of ordinary prompts is above
    mean plus k deviations of injected ones. The paper lowers k where no head is left; we take the
    `FEWEST_HEADS` with the largest margin.
    """
    drop = ordinary.mean(0) - injected.mean(0)
    margin = drop - DEVIATIONS * (ordinary.std(0) + injected.std(0))
    least = margin.topk(min(FEWEST_HEADS, len(margin))).values[-1]
    return margin >= min(float(least), 0.0)
