"""Which heads make a prediction: what each adds directly, and what is lost without it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.heads import capture, direct_states, intervene
from saccade.investigations.prompt_batches import BATCH_TOKENS
from saccade.investigations.replacement import Ablation, Replacement
from saccade.investigations.target import Target

if TYPE_CHECKING:
    from saccade.heads import Captured, LanguageModel


@dataclass(frozen=True, kw_only=True)
class RankedHead:
    """One head and what it does for a word, in logits."""

    layer: int
    head: int
    direct: float | None
    """What it adds directly; None where the model has no direct path."""
    effect: float
    """By how much the word falls when the head is ablated at every position."""
    repair: dict[str, float] | None = None
    """Ablated at the last position only: see `saccade.investigations.self_repair`."""

    @property
    def name(self) -> str:
        """``layer.head``."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """All heads of a model, by what they do for a word after a prompt."""

    model: str
    text: str
    word: str
    against: str | None
    ablation: Ablation
    score: float
    """The word's logit above the other word's, or above the mean of all."""
    probability: float
    heads: tuple[RankedHead, ...]
    """In order of depth."""

    def ranked(self) -> tuple[RankedHead, ...]:
        """Largest effect first, for the word or against it."""
        return tuple(sorted(self.heads, key=lambda head: -abs(head.effect)))

    def by_layer(self, figure: str = "effect") -> dict[int, Float[Tensor, " head"]]:
        """One figure of every head, for a heat map."""
        rows: dict[int, list[float]] = {}
        for head in self.heads:
            value = getattr(head, figure)
            rows.setdefault(head.layer, []).append(float("nan") if value is None else value)
        return {layer: torch.tensor(row) for layer, row in rows.items()}

    def agreement(self) -> float | None:
        """The correlation between what heads add directly and what is lost without them."""
        if any(head.direct is None for head in self.heads):
            return None
        pairs = torch.tensor([[head.direct or 0.0, head.effect] for head in self.heads])
        return float(torch.corrcoef(pairs.T)[0, 1])

    def with_repair(self, repair: dict[tuple[int, int], dict[str, float]]) -> Ranking:
        """The same with what was made up for each head beside it."""
        heads = (replace(head, repair=repair[head.layer, head.head]) for head in self.heads)
        return replace(self, heads=tuple(heads))

    def to_json(self) -> str:
        """One JSON object."""
        whole: dict[str, Any] = {**asdict(self), "agreement": self.agreement()}
        return json.dumps(whole, ensure_ascii=False)


class Ablated(NamedTuple):
    """Some heads, each ablated in a row of its own."""

    sites: list[tuple[int, int]]
    captured: Captured


@torch.no_grad()
def rank_heads(
    model: LanguageModel,
    text: str,
    target: Target,
    *,
    replacement: Replacement,
    progress: Callable[..., None] | None = None,
) -> Ranking:
    """Direct logit attribution and measured ablation effect of every head, side by side.

    Direct: Elhage et al., 2021 ("A Mathematical Framework for Transformer Circuits"), see
    `saccade.heads.direct_logits`. Effect: the score of the prompt less its score without the head.
    Copies of the prompt stand in one batch, with another head ablated in each.
    """
    ids = model.encode(text)
    clean = capture(model, ids, residual=True)
    logits = model.unembedding.logits(clean.final[0, -1]).float()
    score, direct = float(target.score(logits)), direct_scores(model, clean, target)
    effects: dict[tuple[int, int], float] = {}
    for rows in ablated_copies(model, ids, replacement):
        without = model.unembedding.logits(rows.captured.final[:, -1]).float()
        lost = score - target.score(without)
        effects.update(zip(rows.sites, lost.tolist(), strict=True))
        if progress is not None:
            progress("ablate heads", len(effects), model.n_heads)
    return Ranking(
        model=model.name,
        text=text,
        word=model.words([target.word])[0],
        against=None if target.against is None else model.words([target.against])[0],
        ablation=replacement.by,
        score=score,
        probability=float(logits.softmax(-1)[target.word]),
        heads=tuple(
            RankedHead(
                layer=layer,
                head=head,
                direct=None if layer not in direct else float(direct[layer][0, head]),
                effect=effect,
            )
            for (layer, head), effect in effects.items()
        ),
    )


def direct_scores(
    model: LanguageModel, captured: Captured, target: Target, *, position: int = -1
) -> dict[int, Float[Tensor, "batch head"]]:
    """By layer: what each head adds directly to the score at a position, the last by default."""
    along = target.direction(model.unembedding)
    found = {}
    for at in model.layers:
        if at.reaches_stream:
            states = direct_states(model, captured, at.index, positions=[position])[:, 0]
            found[at.index] = states.to(along) @ along
    return found


def ablated_copies(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    replacement: Replacement,
    *,
    only_last: bool = False,
    keep: bool = False,
) -> Iterator[Ablated]:
    """Every head ablated once, as many copies of the prompt at a time as fit.

    Args:
        only_last: ablate at the last position, not at all of them.
        keep: capture the heads and the stream too.
    """
    sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    length = ids.shape[1]
    n_rows = max(1, BATCH_TOKENS // length)
    for start in range(0, len(sites), n_rows):
        chosen = sites[start : start + n_rows]
        changes = [
            replacement.change(layer, head, row=row, length=length, only_last=only_last)
            for row, (layer, head) in enumerate(chosen)
        ]
        copies = ids.expand(len(chosen), -1)
        # A head that holds already what would be put there has no effect: that is an answer.
        with intervene(model, changes, may_do_nothing=True):
            captured = capture(model, copies, layers=None if keep else [], residual=keep)
        yield Ablated(chosen, captured)
