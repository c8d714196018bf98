"""Does ablating a head change the model's prediction the way its lens predicts?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.interp.lenses.lens import Lens
from saccade.interp.studies.fidelity.geometry import (
    Agreement,
    Estimate,
    agreement,
    divergence,
    estimate,
    resampled,
    resampled_means,
)
from saccade.interp.studies.fidelity.stage import Stage

Tick = Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class AblationCheck:
    """Metrics of one kind of prediction, for some heads of a layer, by window of text."""

    heads: tuple[int, ...]
    removed: Agreement
    """Lens and model when the head is set to its mean; summed over a window, [window, head]."""
    aligned: Float[Tensor, "window head"]
    """The mean cosine when the head gets its activation from another window."""
    effect: Float[Tensor, "window head"]
    """KL(model || model without the head), in nats: the size of the effect to predict."""

    def correlations(self) -> Float[Tensor, "bootstrap head"]:
        """Of the lens's change with the model's, over all tokens and positions, resampled."""
        counts = resampled(len(self.aligned))
        summed = Agreement(*(counts @ each for each in self.removed))
        return summed.cosine()

    def alignments(self) -> Float[Tensor, "bootstrap head"]:
        """The mean over positions of the cosine, resampled."""
        return resampled_means(self.aligned)

    def correlation(self, place: int) -> Estimate:
        """The ablation correlation of the head at ``place`` of ``heads``."""
        return estimate(self.correlations()[:, place])

    def alignment(self, place: int) -> Estimate:
        """The stimulus-response alignment of the head at ``place`` of ``heads``."""
        return estimate(self.alignments()[:, place])


@torch.no_grad()
def check_ablation(
    stage: Stage,
    lenses: Mapping[str, Lens],
    *,
    rules: Sequence[Rule] = (),
    heads: Sequence[int] | None = None,
    tick: Tick | None = None,
) -> dict[str, AblationCheck]:
    """Ablate and resample each head of a layer, and compare the effects with each prediction.

    - *Removed*: the head is set to its mean everywhere. The correlation is over all tokens and
      positions together, tokens weighted by the model's probability of them (`agreement`), so that
      the positions with the largest effects count most.
    - *Resampled*: the head gets its activation at the same position of another window (no window
      keeps its own). The alignment is the mean over positions of the correlation within each: the
      stimulus-response alignment of Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), with a
      whole head in place of a direction of the residual stream.

    A lens reads one position by itself; the model is changed at every position, as in the paper, so
    the effect of a head on later tokens through other heads is in the model but not in the lens.
    Attribution by gradients (`first_order`) is of this text and has it.

    Args:
        lenses: by name, all for this layer; the model is run once for all of them.
        rules: attributions to compare too; each point of a rule costs two more runs.
        heads: which heads; all by default.
        tick: called after each run of the model.
    """
    z = stage.rerun.z.float()
    heads = tuple(range(z.shape[2])) if heads is None else tuple(heads)
    n_windows = len(z)
    assert n_windows > 1, "resampling needs at least two windows"
    shift = 1 + int(torch.randint(n_windows - 1, (), generator=torch.Generator().manual_seed(0)))
    stimuli = (stage.mean.expand_as(z), z.roll(shift, dims=0))
    by_lens = [
        {name: _lens_change(stage, lens, new) for name, lens in lenses.items()} for new in stimuli
    ]
    found: dict[str, list[tuple[Agreement, Agreement]]] = {
        name: [] for name in (*lenses, *(rule.name for rule in rules))
    }
    effects = []
    for head in heads:
        pairs: list[dict[str, Agreement]] = []
        for new, lens in zip(stimuli, by_lens, strict=True):
            answer = stage.answer(head, new[:, :, head])
            if tick is not None:
                tick()
            if not pairs:  # the first stimulus: the head is removed
                effects.append(divergence(stage.before, answer, stage.tokens.log_weight))
            changes = {name: each[:, head] for name, each in lens.items()}
            changes |= first_order(stage, head, new[:, :, head], rules, tick=tick)
            pairs.append(
                {
                    name: agreement(
                        change, stage.before, answer, log_weight=stage.tokens.log_weight
                    )
                    for name, change in changes.items()
                }
            )
        for name, into in found.items():
            into.append((pairs[0][name], pairs[1][name]))
    effect = stage.by_window(torch.stack(effects, 1))
    return {
        name: AblationCheck(
            heads=heads,
            removed=_by_window(stage, [removed for removed, _ in pairs]),
            aligned=torch.stack([_aligned(stage, each) for _, each in pairs], 1),
            effect=effect,
        )
        for name, pairs in found.items()
    }


def _lens_change(stage: Stage, lens: Lens, new: Tensor) -> Tensor:
    """The change of the logits of each head's lens when only that head is changed."""
    at = new[:, -stage.n_positions :].flatten(0, 1)
    return stage.lens_logits(lens, at) - stage.lens_logits(lens, stage.z)


def _aligned(stage: Stage, found: Agreement) -> Float[Tensor, " window"]:
    """The mean cosine of each window, over the positions where the prediction changed.

    Windows that begin with the same tokens have the same activations there: nothing to resample.
    """
    has_moved = (found.model > 0).float()
    total = stage.by_window(torch.stack([found.cosine() * has_moved, has_moved], 1))
    return total[:, 0] / total[:, 1].clamp_min(1e-12)


def _by_window(stage: Stage, parts: list[Agreement]) -> Agreement:
    columns = [torch.stack(each, 1) for each in zip(*parts, strict=True)]
    return Agreement(*(stage.by_window(each).cpu() for each in columns))


# First-order predictions of an ablation: gradients between activation and mean.


class Rule(NamedTuple):
    """Points between the activation (0) and its replacement (1), and the weight of each."""

    name: str
    points: tuple[float, ...]
    weights: tuple[float, ...]


AT_TEXT = Rule("gradient at the text", (0.0,), (1.0,))


def gauss_legendre(n_points: int) -> Rule:
    """The rule of n points that is exact for polynomials of degree 2 n - 1.

    >>> gauss_legendre(1)
    Rule(name='gradient half-way', points=(0.5,), weights=(1.0,))
    """
    nodes, weights = np.polynomial.legendre.leggauss(n_points)
    name = "gradient half-way" if n_points == 1 else f"gradient at {n_points} points"
    points = ((nodes + 1) / 2).tolist()
    return Rule(name, tuple(points), tuple((weights / 2).tolist()))


def rules_of(n_points: int) -> tuple[Rule, ...]:
    """The gradient at the text, and the rule of n points; none for 0."""
    return (AT_TEXT, gauss_legendre(n_points)) if n_points else ()


def step_size(dtype: torch.dtype) -> float:
    """The step of a central difference on the way from 0 to 1.

    The cube root of the rounding error balances rounding (error / h) and curvature (h squared):
    0.01 in float32. There the derivatives at layers 2, 12 and 25 of the default model are within
    0.1, 0.1 and 0.3 % of those of forward-mode differentiation (norm of the difference over the
    norm), which changes a correlation by 5e-6 at most. In bfloat16 it is 0.4, a coarse estimate:
    open the model in float32 to measure attribution. In float64 it is as in float32, the precision
    of the logits of a `Stage`.
    """
    return 2 * max(torch.finfo(each).eps for each in (dtype, torch.float32)) ** (1 / 3)


def first_order(
    stage: Stage,
    head: int,
    activation: Float[Tensor, "window pos d_head"],
    rules: Sequence[Rule],
    *,
    tick: Callable[[], None] | None = None,
) -> dict[str, Float[Tensor, "n token"]]:
    """The change of the logits when the head gets this activation, predicted by each rule.

    Args:
        tick: called after each of the two runs per point; rules share their points.
    """
    found: dict[str, Tensor] = {}
    slopes: dict[float, Tensor] = {}
    for rule in rules:
        total = torch.zeros_like(stage.before)
        for point, weight in zip(rule.points, rule.weights, strict=True):
            if point not in slopes:
                slopes[point] = slope(stage, head, activation, point, tick=tick)
            total += weight * slopes[point]
        found[rule.name] = total
    return found


def slope(
    stage: Stage,
    head: int,
    activation: Float[Tensor, "window pos d_head"],
    point: float,
    *,
    tick: Callable[[], None] | None = None,
) -> Float[Tensor, "n token"]:
    """The derivative of the logits at a point on the way from the head's activation to this one."""
    start = stage.rerun.z[:, :, head]
    step = step_size(stage.model.hf.dtype)
    sides = []
    for s in (point + step, point - step):
        sides.append(stage.answer(head, torch.lerp(start, activation.to(start), s)))
        if tick is not None:
            tick()
    return (sides[0] - sides[1]) / (2 * step)
