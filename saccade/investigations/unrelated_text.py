"""What an edit costs: how much worse a model predicts text that has nothing to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import Change, capture, intervene
from saccade.investigations.prompt_ends import PromptEnds

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

MOST_COST = 0.01  # of the perplexity of unrelated text
REACH = 16  # tokens before the cut that are run again, so that most edits share one beginning


class UnrelatedText:
    """Texts, each cut in two: the first part stands for a prompt, the second is what follows it.

    An edit is made at the end of the first part as it would be at the end of its own prompt, and
    the second part is what is judged: all of the harm an edit can do to what is said behind it.
    """

    def __init__(self, model: LanguageModel, ids: Int[Tensor, "batch pos"]) -> None:
        self.model, self.ids = model, ids
        self._begun = cache(self._begin)
        self._plain = cache(self._losses)

    def cost(self, changes: Sequence[Change]) -> float:
        """By which share changes raise the perplexity.

        Args:
            changes: their positions count from the end of a prompt (below 0), or are all.
        """
        n_pos = self.ids.shape[1]
        reach = -min((min(c.positions) for c in changes if c.positions), default=-1)
        cut = max(n_pos // 2, reach + 1)
        if cut >= n_pos - 1:
            raise UsageError(
                f"the edit reaches {reach} tokens back, the unrelated texts have {n_pos}",
                hint="change something nearer to the end of the prompt",
            )
        if any(each.positions is None for each in changes):
            reach = None
        else:
            reach = min(max(reach, REACH), cut - 1)
        edited = self._losses(cut, reach, tuple(_behind(each, cut) for each in changes))
        return float((edited - self._plain(cut, reach)).mean().exp()) - 1

    @torch.no_grad()
    def _losses(
        self, cut: int, reach: int | None, changes: tuple[Change, ...] = ()
    ) -> Float[Tensor, " batch"]:
        """Of the second parts; the first are run once, but for ``reach`` tokens (all: None)."""
        if reach is None:
            with intervene(self.model, changes) if changes else nullcontext():
                final = capture(self.model, self.ids, layers=[]).final[:, cut - 1 : -1]
        else:
            final = self._begun(cut, reach).states(changes)[:, reach - 1 : -1]
        losses = []
        for states, words in zip(final, self.ids[:, cut:], strict=True):  # a row's logits at a time
            said = self.model.unembedding.logits(states).float().log_softmax(-1)
            losses.append(-said.gather(-1, words[:, None].to(said.device)).mean())
        return torch.stack(losses)

    def _begin(self, cut: int, reach: int) -> PromptEnds:
        return PromptEnds(self.model, list(self.ids), tail=self.ids.shape[1] - cut + reach)


def _behind(change: Change, cut: int) -> Change:
    """The change with its positions counted from the end of the first part."""
    if change.positions is None:
        return change
    return replace(change, positions=tuple(cut + place for place in change.positions))
