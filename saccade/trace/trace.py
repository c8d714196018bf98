"""A trace: at each step of what was produced, how much of each place of the memory was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

UPRIGHT = frozenset({"hops"})
"""Kinds whose memory is a list of sentences, which are read from top to bottom."""


class Look(NamedTuple):
    """A place of the memory and its weight."""

    label: str
    position: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Where attention went while a system produced something.

    >>> import torch
    >>> trace = Trace(
    ...     kind="attention",
    ...     steps=("the", "cat"),
    ...     memory=("die", "Katze", "."),
    ...     weights=torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.7, 0.1]]),
    ... )
    >>> [trace.most(step, top=1)[0].label for step in range(2)]
    ['die', 'Katze']
    """

    kind: str
    """attention, self-attention, hops, ...; ``document`` where the memory is running text."""
    steps: tuple[str, ...]
    """What was produced, one label a step."""
    memory: tuple[str, ...]
    """What was attended to, one label a place."""
    weights: Float[Tensor, "step key_pos"] | Float[Tensor, "view step key_pos"]
    """With several views side by side (heads, or hops) these come first."""
    views: tuple[str, ...] = ()
    """A name for each view, such as ``0.3`` for head 3 of layer 0."""
    title: str = ""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth keeping, as JSON."""

    def __post_init__(self) -> None:
        n_views = (len(self.views),) if self.weights.dim() == 3 else ()
        expected = (*n_views, len(self.steps), len(self.memory))
        assert tuple(self.weights.shape) == expected, (
            f"weights are {tuple(self.weights.shape)}, their labels say {expected}"
        )
        assert self.weights.dim() == 3 or not self.views, "one view needs no name"

    @property
    def n_views(self) -> int:
        """How many heads or hops are side by side."""
        return len(self.views) or 1

    @property
    def is_upright(self) -> bool:
        """Whether the memory is drawn from top to bottom, and the steps from left to right."""
        return self.kind in UPRIGHT

    @property
    def by_view(self) -> Float[Tensor, "view step key_pos"]:
        """The weights, with an axis for the views even if there is one."""
        weights = self.weights.detach().float().cpu()
        return weights if weights.dim() == 3 else weights[None]

    def most(self, step: int, *, top: int = 3) -> tuple[Look, ...]:
        """The places that a step read most, on the average of the views; none of weight zero."""
        weights = self.by_view[:, step].mean(0)  # [key_pos]
        best = weights.topk(min(top, len(weights)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return tuple(Look(self.memory[at], at, weight) for at, weight in pairs if weight > 0)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        return {
            "kind": self.kind,
            "title": self.title,
            "steps": list(self.steps),
            "memory": list(self.memory),
            "views": list(self.views),
            "weights": self.weights.detach().cpu().tolist(),
            "meta": dict(self.meta),
        }
