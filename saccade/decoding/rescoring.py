"""N-best lists put into a new order by a second opinion.

Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), section 3.2: the 1000 best of a
phrase-based system, ranked by an even average of its score and the network's.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.cells.state import select_rows
from saccade.decoding.hypothesis import Hypothesis
from saccade.decoding.stepper import Stepper, first_tensor
from saccade.errors import UsageError
from saccade.tasks.symbols import BOS, EOS, PAD

Scorer = Callable[[list[list[list[int]]]], list[list[float]]]
"""From the hypotheses of each sentence, as symbols, to a score for each."""


def rescore(
    n_best: Sequence[Sequence[Hypothesis]], scorer: Scorer, *, weight: float = 0.5
) -> list[list[Hypothesis]]:
    """Rank by ``(1 - weight) * score + weight * scorer``, best first.

    Only ``score`` changes; ``log_prob`` stays what the first model said.

    Args:
        weight: One half is the paper's even average; 1 forgets the first score.
    """
    second = scorer([[one.ids for one in sentence] for sentence in n_best])
    found = [len(scores) for scores in second]
    if found != (expected := [len(sentence) for sentence in n_best]):
        raise UsageError(
            f"a scorer must score every hypothesis: expected {expected} scores, got {found}",
            hint="return one list a sentence with one number a hypothesis",
        )
    ranked = []
    for sentence, scores in zip(n_best, second, strict=True):
        both = [
            one._replace(score=(1 - weight) * one.score + weight * score)
            for one, score in zip(sentence, scores, strict=True)
        ]
        ranked.append(sorted(both, key=lambda one: one.score, reverse=True))
    return ranked


def by_model(stepper: Stepper, source: Any) -> Scorer:
    """A scorer that asks another model for the log-probability of each hypothesis."""

    def score(hypotheses: list[list[list[int]]]) -> list[list[float]]:
        log_prob = log_prob_of(stepper, source, hypotheses).tolist()
        return [row[: len(group)] for row, group in zip(log_prob, hypotheses, strict=True)]

    return score


@torch.no_grad()
def log_prob_of(
    stepper: Stepper, source: Any, hypotheses: list[list[list[int]]]
) -> Float[Tensor, "sentence n"]:
    """The log-probability of given sequences, their end symbol included.

    A sentence with fewer hypotheses than another has numbers without meaning at the end.
    """
    memory, state = stepper.start(source)
    first = first_tensor(state)
    if len(first) != len(hypotheses):
        raise UsageError(
            f"hypotheses for {len(hypotheses)} sentences, but the source has {len(first)}",
            hint="give the source that the hypotheses were made from",
        )
    targets, is_real = (part.to(first.device) for part in _padded(hypotheses))
    n = targets.shape[1]
    state = select_rows(state, torch.arange(len(first), device=first.device).repeat_interleave(n))
    log_prob = torch.zeros(len(first), n, device=first.device)
    tokens = torch.full((len(first) * n,), BOS, device=first.device)
    for target, real in zip(targets.unbind(2), is_real.unbind(2), strict=True):
        stepped = stepper.step(tokens, memory, state)
        tokens, state = target.flatten(), stepped.state
        gained = stepped.log_probs.gather(1, tokens[:, None]).view_as(log_prob)
        log_prob += gained.masked_fill(~real, 0.0)
    return log_prob


class _Padded(NamedTuple):
    """Hypotheses with their end symbols as one tensor."""

    ids: Int[Tensor, "sentence n pos"]
    is_real: Bool[Tensor, "sentence n pos"]


def _padded(hypotheses: list[list[list[int]]]) -> _Padded:
    n = max(len(group) for group in hypotheses)
    longest = max((len(ids) for group in hypotheses for ids in group), default=0) + 1
    ids = torch.full((len(hypotheses), n, longest), PAD)
    is_real = torch.zeros_like(ids, dtype=torch.bool)
    for s, group in enumerate(hypotheses):
        for i, one in enumerate(group):
            ids[s, i, : len(one) + 1] = torch.tensor([*one, EOS])
            is_real[s, i, : len(one) + 1] = True
    return _Padded(ids, is_real)
