"""What the loop needs to know of a system to train it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from saccade.training.config import TrainConfig
from saccade.training.curriculum import Curriculum

NOTHING: Mapping[str, Any] = MappingProxyType({})


class LossOut(NamedTuple):
    """The loss of a batch."""

    loss: Float[Tensor, ""]
    """To be minimised: a mean over ``n`` units, so that parts of a batch can be put together."""
    n: int
    """How many units (tokens, images, ...) it is the mean of."""
    logged: Mapping[str, Float[Tensor, ""] | float] = NOTHING
    """More means over the same units, for the log; the same names at every step."""


class Carried(NamedTuple):
    """What a loss remembers from step to step: the state of an RNN that reads on, for instance.

    A run that is taken up again must have it, too. The rows of the batch are on the first axis.
    """

    read: Callable[[], Mapping[str, Tensor]]
    write: Callable[[Mapping[str, Tensor]], None]
    """Given what ``read`` gave; nothing at all means: forget."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A system, what it is trained on, and what tells how good it is.

    A batch is a tensor, or a tuple, NamedTuple, list or dict of them, with the rows of the batch on
    the first axis of each.
    """

    model: nn.Module
    batches: Callable[[int], Iterable[Any]] | Curriculum
    """``batches(epoch)``: the same in the same order for the same epoch; epochs count from 0."""
    loss: Callable[[nn.Module, Any], LossOut]
    validate: Callable[[nn.Module], Mapping[str, float]]
    """Scores on held-out data; called without gradients, in eval mode, in the first process."""
    score: str
    """The score to watch, a key of what ``validate`` gives."""
    is_better: Literal["less", "more"]
    """Which way the score is better."""
    config: TrainConfig
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What a run must keep beside the weights, as JSON: a vocabulary, for instance."""
    before_step: Callable[[nn.Module, int], None] | None = None
    """Called before each step with its number: a temperature that falls, a row kept at zero."""
    is_done: Callable[[Mapping[str, float]], bool] | None = None
    """Whether these scores are all that was wanted, so that training can end."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """Factors on the learning rate for weights whose names begin so."""
    carried: Carried | None = None
    """What the loss remembers from step to step beside the model's own buffers."""
    has_idle_weights: bool = False
    """Some weights take no part in some steps; several processes must know."""

    def batches_of(self, epoch: int, stage: int) -> Iterable[Any]:
        """The batches of an epoch, at a stage of the curriculum if there is one."""
        if isinstance(self.batches, Curriculum):
            return self.batches.batches(epoch, stage)
        return self.batches(epoch)

    def beats(self, score: float, best: float | None) -> bool:
        """Whether a score is better than the best one so far."""
        if best is None:
            return True
        return score < best if self.is_better == "less" else score > best
