"""Several models decoded as one."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.decoding.stepper import Started, Stepped, Stepper
from saccade.errors import UsageError


class Ensemble:
    """A stepper whose prediction is the mean of its members' probabilities.

    Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), section 3.6: five such models with a
    beam of 12 gain over four BLEU points on one of them. The paper does not say how it joins them;
    the mean of probabilities is what a mixture of the models predicts. All members read the same
    source. The weights are the mean of the members', where all tell them.
    """

    def __init__(self, members: Sequence[Stepper]) -> None:
        if not members:
            raise UsageError("an ensemble needs at least one model, got none", hint="name its runs")
        self.members = tuple(members)

    def start(self, source: Any) -> Started:
        """Let each member read the source."""
        started = [member.start(source) for member in self.members]
        return Started(tuple(s.memory for s in started), tuple(s.state for s in started))

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Step each member and average what they predict."""
        each = zip(self.members, memory, state, strict=True)
        stepped = [member.step(tokens, m, s) for member, m, s in each]
        return Stepped(
            log_probs=log_mean([one.log_probs for one in stepped]),
            state=tuple(one.state for one in stepped),
            weights=_mean([one.weights for one in stepped]),
            stop=_log_odds_of_mean([one.stop for one in stepped]),
        )


def log_mean(log_probs: Sequence[Float[Tensor, "row d_vocab"]]) -> Float[Tensor, "row d_vocab"]:
    """The logarithm of the mean of probabilities, from their logarithms."""
    sizes = [one.shape[1] for one in log_probs]
    if len(set(sizes)) > 1:
        raise UsageError(
            f"the models of an ensemble must share a vocabulary, got sizes {sizes}",
            hint="use models trained with the same vocabulary file",
        )
    return reduce(torch.logaddexp, log_probs) - math.log(len(log_probs))


def _mean(weights: Sequence[Tensor | None]) -> Tensor | None:
    known = [one for one in weights if one is not None]
    if len(known) < len(weights) or len({one.shape for one in known}) > 1:
        return None
    return torch.stack(known).mean(0)


def _log_odds_of_mean(stops: Sequence[Tensor | None]) -> Tensor | None:
    known = [one for one in stops if one is not None]
    if not known:
        return None
    assert len(known) == len(stops), "some members stop by coin and some by end symbol"
    return torch.stack(known).sigmoid().mean(0).logit()
