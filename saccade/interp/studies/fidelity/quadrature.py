"""First-order attribution of a head: its effect from derivatives on the way to its replacement.

The change of the logits when the activation z of a head becomes z' is the integral over s in [0, 1]
of their derivative at ``z + s (z' - z)`` in the direction ``z' - z``. A rule of few points stands
for the integral:

- the derivative *at the text* (s = 0): attribution patching, gradient times difference (Syed et
  al., 2023, https://arxiv.org/abs/2310.10348);
- *half-way* (s = 1/2), and Gauss-Legendre rules of more points: integrated gradients (Sundararajan
  et al., 2017, https://arxiv.org/abs/1703.01365) with points where an integral needs fewest.

We differ: those papers take the gradient of one number by a backward pass. Here the derivative of
*all* sampled tokens' logits in one direction is needed, a Jacobian-vector product. It is a central
difference of two runs of the later layers, ``(f(s + h) - f(s - h)) / 2h``, because forward-mode
differentiation is not implemented for the fused attention of every family, and took 6 to 30 times
as long where it is. `step_size` says what h is; a test compares with `torch.func.jvp`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from saccade.interp.studies.fidelity.stage import Stage


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
