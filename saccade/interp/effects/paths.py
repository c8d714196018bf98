"""Path patching: the effect of a head on a prediction through another head.

Wang et al., 2022 (https://arxiv.org/abs/2211.00593), appendix B. `path_effects` measures it: the
model runs with the first head replaced and every head between the two kept at its activation in the
plain run, so that only the feed-forward parts carry the change; then it runs with the second head's
activation alone changed to what it was there. `PathGradients` gives the same for all heads at all
positions at once, at first order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.effects.attribution import graph_of_heads, score_of, unchanged
from saccade.interp.effects.positions import (
    HeadAt,
    PositionEffect,
    Row,
    RowChange,
    run_rows,
    state_effects,
)
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import capture, run_base
from saccade.interp.heads.taps import HeadLayer

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel


# As many parameters as a measurement has choices.
@torch.no_grad()
def path_effects(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    heads: Sequence[HeadAt],
    through: HeadAt,
    *,
    replacement: Replacement,
    target: Target | None = None,
    at: int = -1,
) -> dict[HeadAt, PositionEffect]:
    """Measure what each head does to the prediction at ``at`` through another head.

    Args:
        heads: each of an earlier layer than ``through``.
        through: the head that carries the effect, at its positions (all: None).
    """
    for head in heads:
        if head.layer >= through.layer:
            raise UsageError(
                f"head {head.layer}.{head.head} is not before {through.layer}.{through.head}: "
                "heads read what earlier layers wrote",
                hint="give a head of a later layer to go through",
            )
    n_tokens = ids.shape[1]
    places = range(n_tokens) if through.positions is None else through.positions
    between = [at.index for at in model.layers if at.index < through.layer]
    plain = capture(model, ids, layers=between).z
    rows = []
    for head in heads:
        held = [_held(model.layer(i), plain[i][0]) for i in between if i > head.layer]
        rows.append(Row((*head.replaced(replacement).changes, *held)))
    reached = run_rows(
        model, ids, rows, at=list(places), keep=[through.layer], until=through.layer
    ).z[through.layer][:, :, [through.head]]  # [row, pos, 1, d_head]
    changed = [Row((RowChange(through.layer, (through.head,), z, tuple(places)),)) for z in reached]
    run = run_rows(model, ids, changed, at=[at])
    found = state_effects(model, run.plain[0, 0], run.states[:, 0], target)
    return dict(zip(heads, found, strict=True))


def _held(at: HeadLayer, z: Float[Tensor, "pos head d_head"]) -> RowChange:
    """All heads of a layer at the activations of the plain run."""
    return RowChange(at.index, tuple(range(at.n_heads)), z)


ByHead = dict[int, Float[Tensor, "pos head"]]
"""By layer: a number for each head at each position."""


class _Cut:
    """Replaces activations by copies without a history, and keeps both."""

    def __init__(self) -> None:
        self.before: dict[int, Tensor] = {}

    def copy(self, at: HeadLayer, z: Tensor) -> Tensor:
        """The activations without what they were computed from."""
        self.before[at.index] = z
        return z.detach().requires_grad_()


@dataclass(frozen=True)
class PathGradients:
    """A run in which a change of one head reaches others through feed-forward parts alone.

    Every head's activation is replaced by a copy of itself without a history. The gradient at the
    copies, of something that depends on them, is then that along the direct path: through
    feed-forward parts and norms, not through other heads. With the gradient ``g`` of the target's
    score at a later head in the unchanged model, the gradient of ``g . z`` at the copies of earlier
    heads is the path from them through that head to the prediction. So the attribution of every
    head is what it gives directly plus what it gives through each later head.
    """

    attribution: ByHead
    """Along all paths: the gradient at the text, times the activation minus its replacement."""
    gradient: Mapping[int, Float[Tensor, "pos head d_head"]]
    """By layer: the gradient of the target's score along all paths."""
    away: Mapping[int, Float[Tensor, "pos head d_head"]]
    """By layer: each activation minus what replaces it."""
    score: float
    _final: Tensor
    _before: Mapping[int, Tensor]
    _copies: Mapping[int, Tensor]

    # As many parameters as a measurement has choices.
    @classmethod
    def record(
        cls,
        model: LanguageModel,
        ids: Int[Tensor, "1 pos"],
        target: Target,
        *,
        replacement: Replacement,
        at: int = -1,
    ) -> PathGradients:
        """Run the model twice: with the heads' histories, and without."""
        with graph_of_heads(model, 1, unchanged) as z:
            score = score_of(model, run_base(model.hf, ids)[:, at], target)
            # A head of the last layer does not reach the prediction from another position.
            found = torch.autograd.grad(score, list(z.values()))
        cut = _Cut()
        with graph_of_heads(model, 1, cut.copy) as copies:
            final = score_of(model, run_base(model.hf, ids)[:, at], target)
        gradient = {layer: each[0] for layer, each in zip(z, found, strict=True)}
        away = {
            layer: each.detach()[0] - replacement.heads[layer].to(each) for layer, each in z.items()
        }
        along = {layer: (gradient[layer] * away[layer]).sum(-1) for layer in z}
        return cls(along, gradient, away, float(final.detach()), final, cut.before, dict(copies))

    def direct(self) -> ByHead:
        """What each head gives to the score through no other head."""
        return self._at_copies(self._final, list(self._copies))

    def through(self, layer: int, head: int, position: int) -> ByHead:
        """What each head of an earlier layer gives to the score through this one."""
        earlier = [i for i in self._copies if i < layer]
        z = self._before[layer][0, position, head]
        return self._at_copies((self.gradient[layer][position, head] * z).sum(), earlier)

    def _at_copies(self, value: Tensor, layers: list[int]) -> ByHead:
        if not layers:
            return {}
        copies = [self._copies[i] for i in layers]
        found = torch.autograd.grad(value, copies, retain_graph=True, materialize_grads=True)
        return {
            layer: (each[0] * self.away[layer]).sum(-1)
            for layer, each in zip(layers, found, strict=True)
        }
