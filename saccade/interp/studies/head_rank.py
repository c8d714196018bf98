"""Rank heads for a prediction: direct logit attribution and the effect of ablation."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ModelError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.effects import measure_effects
from saccade.interp.effects.parts import HeadsValue
from saccade.interp.effects.positions import HeadAt, position_effects
from saccade.interp.heads.capture import Captured
from saccade.interp.heads.residual_path import direct_states

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Ablation, Replacement
    from saccade.interp.effects.target import Target
    from saccade.interp.heads.model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class RankedHead:
    """One head and its contribution to a token, in logits."""

    layer: int
    head: int
    kl: float
    """KL(with || without) of the whole prediction, in nats."""
    direct: float | None
    """The direct part of the effect; None where the model has no direct path."""
    effect: float
    """How far the score falls when the head is ablated at the last token."""
    everywhere: float | None = None
    """How far it falls when the head is ablated at every token; None if not measured."""
    repair: dict[str, float] | None = None
    """The parts of what later layers repair: see `self_repair`."""

    @property
    def name(self) -> str:
        """``layer.head``."""
        return f"{self.layer}.{self.head}"


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """All heads of a model, with their contributions to a token after a prompt."""

    model: str
    text: str
    token: str
    against: str | None
    ablation: Ablation
    score: float
    """The token's logit minus the other token's, or minus the mean of all."""
    probability: float
    heads: tuple[RankedHead, ...]
    """In order of depth."""

    def ranked(self) -> tuple[RankedHead, ...]:
        """Largest effect first, of either sign; the effect everywhere, where it was measured."""
        return tuple(
            sorted(
                self.heads,
                key=lambda head: -abs(head.effect if head.everywhere is None else head.everywhere),
            )
        )

    def by_layer(self, measure: str = "effect") -> dict[int, Float[Tensor, " head"]]:
        """One measure of every head, for a heat map."""
        rows: dict[int, list[float]] = {}
        for head in self.heads:
            value = getattr(head, measure)
            rows.setdefault(head.layer, []).append(float("nan") if value is None else value)
        return {layer: torch.tensor(row) for layer, row in rows.items()}

    def agreement(self) -> float | None:
        """The correlation of direct contributions with effects, over all heads."""
        if any(head.direct is None for head in self.heads):
            return None
        pairs = torch.tensor([[head.direct or 0.0, head.effect] for head in self.heads])
        return float(torch.corrcoef(pairs.T)[0, 1])

    def with_repair(self, repair: dict[tuple[int, int], dict[str, float]]) -> Ranking:
        """The same ranking with the self-repair of each head."""
        heads = (replace(head, repair=repair[head.layer, head.head]) for head in self.heads)
        return replace(self, heads=tuple(heads))

    def to_json(self) -> str:
        """One JSON object."""
        whole: dict[str, Any] = {**asdict(self), "agreement": self.agreement()}
        return json.dumps(whole, ensure_ascii=False)


@torch.no_grad()
def rank_heads(
    model: LanguageModel,
    text: str,
    target: Target,
    *,
    replacement: Replacement,
    everywhere: bool = False,
) -> Ranking:
    """The exact effect of every head at the last token, and the direct part of it.

    Direct: direct logit attribution, Elhage et al., 2021 ("A Mathematical Framework for Transformer
    Circuits"), of the head's activation minus what replaces it.

    Args:
        everywhere: also ablate each head at every token: what it wrote at earlier tokens, for later
            heads to read, is then replaced as well.
    """
    ids = model.encode(text)
    measured = measure_effects(model, ids, replacement=replacement, targets=target)
    found, final = measured.effects[0], measured.run.captured.final[0, 0]
    sites = [HeadAt(part.layer, part.head or 0) for part in found.parts] if everywhere else []
    whole = position_effects(model, ids, sites, replacement=replacement, target=target)
    return Ranking(
        model=model.name,
        text=text,
        token=model.tokens([target.token])[0],
        against=None if target.against is None else model.tokens([target.against])[0],
        ablation=replacement.by,
        score=found.target_score,
        probability=float(model.unembedding.logits(final).float().softmax(-1)[target.token]),
        heads=tuple(
            RankedHead(
                layer=part.layer,
                head=part.head or 0,
                kl=effect.kl,
                direct=effect.direct,
                effect=effect.on_token,
                everywhere=whole[HeadAt(part.layer, part.head or 0)].on_token
                if everywhere
                else None,
            )
            for part, effect in found.parts.items()
        ),
    )


def _direct_scores(
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


# Self-repair: how far later layers compensate for an ablated head.

SMALL = 0.1  # logits: a share of a smaller direct effect is mostly noise


@dataclass(frozen=True)
class Repair:
    """The parts of the effect of ablating one head at the last position, in logits of the score.

    ``total = direct - heads - feed_forward - norm``, exactly.
    """

    total: float
    """How far the score falls."""
    direct: float
    """How far it would fall if nothing after the head changed."""
    heads: float
    """The increase of the direct effects of later heads."""
    feed_forward: float
    """The increase of the direct effects of feed-forward layers."""
    norm: float
    """What the final norm adds by rescaling the changed stream."""

    @property
    def share(self) -> float | None:
        """The repaired share of the direct loss: 1 for all, 0 for none, negative for the opposite.

        None where the direct loss is small.
        """
        return None if abs(self.direct) < SMALL else 1 - self.total / self.direct

    def to_dict(self) -> dict[str, float]:
        """Its values by name."""
        share = {} if self.share is None else {"share": self.share}
        return {**asdict(self), **share}


@torch.no_grad()
def self_repair(
    model: LanguageModel, text: str, target: Target, *, replacement: Replacement
) -> dict[tuple[int, int], Repair]:
    """By (layer, head): direct and total effect of ablating it, and what repairs the difference.

    McGrath et al., 2023, "The Hydra Effect" (https://arxiv.org/abs/2307.15771): total effect by
    ablation, direct effect through the unembedding, and the rise of the direct effects of later
    layers. They ablate whole attention layers; we ablate one head, at the last position, and
    separate the changes of heads and of feed-forward layers. The rescaling of the final norm, which
    Rushing and Nanda, 2024 (https://arxiv.org/abs/2402.15390) found to be a large part of it, is
    reported separately: every direct effect is taken at the scale of the unchanged run.
    """
    if not all(at.reaches_stream for at in model.layers):
        raise ModelError(
            f"{model.name} norms its stream after each addition: no direct effects to compare",
            hint="rank its heads without --self-repair",
        )
    sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    values = replacement.at_last().heads
    changes = [HeadsValue(layer, (head,), values[layer][head : head + 1]) for layer, head in sites]
    run = run_copies(model, model.encode(text), changes, keep=True)
    assert run.ends is not None and run.copies is not None, "the copies are kept"
    clean = run.captured
    before = _Parts.of(model, clean, clean, target)
    ablated = Captured(
        {layer: z[0][:, None] for layer, z in run.copies.items()},
        run.states[0][:, None],
        {},
        run.ends[0][:, None],
        {},
    )
    after = _Parts.of(model, ablated, clean, target)
    return {site: before.repair(after, row, site) for row, site in enumerate(sites)}


@dataclass(frozen=True)
class _Parts:
    """The parts of the score of each row, all at the scale of the clean run."""

    score: Float[Tensor, " batch"]
    stream: Float[Tensor, " batch"]
    """The score of the final residual stream at that scale."""
    heads: dict[int, Float[Tensor, " batch"]]
    """The sum of the direct effects of all heads of a layer."""

    @classmethod
    def of(cls, model: LanguageModel, run: Captured, clean: Captured, target: Target) -> _Parts:
        whole, end = clean.final_residual, run.final_residual
        assert whole is not None and end is not None, "captured with the residual stream"
        along = target.direction(model.unembedding)

        def score_of(stream: Tensor) -> Tensor:
            at_end = model.final_norm.frozen(stream[:, -1].to(whole), whole[:, -1])
            return at_end.to(along) @ along

        by_head = _direct_scores(model, run._replace(final_residual=_like(whole, end)), target)
        return cls(
            score=target.score(model.unembedding.logits(run.final[:, -1]).float()),
            stream=score_of(end),
            heads={layer: scores.sum(-1) for layer, scores in by_head.items()},
        )

    def repair(self, after: _Parts, row: int, site: tuple[int, int]) -> Repair:
        layer = site[0]
        later = {index: after.heads[index][row] - self.heads[index][0] for index in self.heads}
        own, others = later[layer], sum((float(later[i]) for i in later if i > layer), 0.0)
        in_stream = float(after.stream[row] - self.stream[0])
        total = float(self.score[0] - after.score[row])
        return Repair(
            total=total,
            direct=-float(own),
            heads=others,
            feed_forward=in_stream - float(own) - others,
            norm=-total - in_stream,
        )


def _like(whole: Tensor, end: Tensor) -> Tensor:
    """The clean end of the stream for each row."""
    return whole.expand(len(end), -1, -1)
