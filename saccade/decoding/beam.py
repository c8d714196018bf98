"""Beam search: keep the best few hypotheses of every sentence at every length.

Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), section 3.2, with the length penalty of
Wu et al., 2016 (https://arxiv.org/abs/1609.08144), section 7, eq. 14: a hypothesis of n symbols
(the end symbol counted) is ranked by ``log_prob / ((5 + n) / 6) ** length_penalty``.

Where we differ:

- A hypothesis that ends leaves the beam and its place goes to the next best, so the beam never
  narrows. It must be among the ``size`` best continuations to count as ended: otherwise every
  hypothesis would be offered as ended at every length, and the very short would win too often.
- A sentence is done only when none of its open hypotheses could still overtake what it has, at any
  length it may reach. To stop at the first end symbol is wrong once there is a length penalty.
- At the length limit the only continuation is the end symbol, so that all hypotheses are whole.

All sentences and hypotheses are searched at once; a sentence that is done leaves the batch.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.cells.state import select_rows
from saccade.decoding.back_pointers import BackPointers
from saccade.decoding.hypothesis import Hypothesis, to_hypotheses
from saccade.decoding.kept import Kept
from saccade.decoding.largest import largest_sums
from saccade.decoding.stepper import Stepper, first_tensor
from saccade.errors import UsageError
from saccade.tasks.symbols import BOS, EOS


class BeamResult(NamedTuple):
    """What a beam search found."""

    hypotheses: list[list[Hypothesis]]
    """The best of each sentence, best first."""

    @property
    def best(self) -> list[Hypothesis]:
        """The best one of each sentence."""
        assert all(self.hypotheses), "nothing can be said: the end symbol has no probability"
        return [found[0] for found in self.hypotheses]


class _Open(NamedTuple):
    """The hypotheses that go on, the best of each sentence first."""

    log_prob: Float[Tensor, "sentence beam"]
    parent: Int[Tensor, "sentence beam"]
    """Which hypothesis of the step before it continues."""
    token: Int[Tensor, "sentence beam"]


class _Expanded(NamedTuple):
    """What becomes of the open hypotheses in one step."""

    open: _Open
    ended: Float[Tensor, "sentence old_beam"]
    """The log-probability of each with an end symbol; minus infinity where that does not count."""


@torch.no_grad()
def beam(
    stepper: Stepper,
    source: Any,
    *,
    size: int,
    max_length: int | Int[Tensor, " sentence"],
    length_penalty: float = 0.0,
    n_best: int = 1,
) -> BeamResult:
    """Search for the ``n_best`` hypotheses of each sentence.

    Args:
        size: How many hypotheses of a sentence are continued at each step.
        max_length: The most symbols, the end symbol counted; one number, or one for each sentence.
            With a length penalty the search must go on while anything up to this length could
            win, so a limit that fits the sentence saves time.
        length_penalty: 0 ranks by probability, which prefers the short; 1 nearly by symbol.
        n_best: How many hypotheses of a sentence are wanted.
    """
    _refuse_less_than_one(
        size=size, n_best=n_best, max_length=int(torch.as_tensor(max_length).min())
    )
    memory, state = stepper.start(source)
    first = first_tensor(state)
    sentence = torch.arange(len(first), device=first.device)
    limit = torch.as_tensor(max_length, device=first.device).expand(len(first))
    log_prob = torch.zeros(len(first), 1, device=first.device)
    tokens = torch.full((len(first),), BOS, device=first.device)
    kept = Kept(len(first), n_best, length_penalty=length_penalty, device=first.device)
    pointers = BackPointers(len(first))
    for step in range(1, int(limit.max()) + 1):
        stepped = stepper.step(tokens, memory, state)
        _refuse_a_coin(stepped.stop)
        # In full precision: sums of many halves would be too coarse to rank by.
        log_probs = stepped.log_probs.float().unflatten(0, log_prob.shape)
        going_on, ended = _expand(log_prob, log_probs, size=size, must_end=limit == step)
        kept.add(ended, sentence=sentence, step=step)
        pointers.add(sentence, going_on.parent, going_on.token, stepped.weights)
        could_win = kept.could_be_beaten(going_on.log_prob[:, 0], sentence, step=step, limit=limit)
        rows = going_on.parent + _first_rows(log_prob)
        if not could_win.all():
            alive = could_win.nonzero()[:, 0]
            memory, sentence, limit = select_rows((memory, sentence, limit), alive)
            going_on, rows = select_rows((going_on, rows), alive)
        if len(sentence) == 0:
            break
        state = select_rows(stepped.state, rows.flatten())
        log_prob, tokens = going_on.log_prob, going_on.token.flatten()
    return BeamResult(to_hypotheses(pointers.read(kept)))


def _expand(
    log_prob: Float[Tensor, "sentence old_beam"],
    log_probs: Float[Tensor, "sentence old_beam d_vocab"],
    *,
    size: int,
    must_end: Bool[Tensor, " sentence"],
) -> _Expanded:
    """Split the best continuations into those that end and those that go on."""
    n_beams, n_all = log_prob.shape[1], log_probs[0].numel()
    # Each hypothesis has one end symbol, so among twice the size enough are left that go on.
    k = min(2 * size, n_all)
    best = largest_sums(log_prob, log_probs, k)
    ended = log_prob + log_probs[:, :, EOS]
    counts = (ended >= best.value[:, min(size, k) - 1, None]) | must_end[:, None]
    goes_on = best.value.masked_fill(best.token == EOS, -torch.inf)
    value, at = goes_on.topk(min(size, k - n_beams))
    return _Expanded(
        _Open(value, best.beam.gather(1, at), best.token.gather(1, at)),
        ended.masked_fill(~counts, -torch.inf),
    )


def _first_rows(log_prob: Float[Tensor, "sentence beam"]) -> Int[Tensor, "sentence 1"]:
    """The row of the state at which the hypotheses of each sentence begin."""
    n_beams = log_prob.shape[1]
    return torch.arange(0, log_prob.numel(), n_beams, device=log_prob.device)[:, None]


def _refuse_less_than_one(**given: int) -> None:
    for name, value in given.items():
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}", hint=f"raise {name}")


def _refuse_a_coin(stop: Tensor | None) -> None:
    if stop is not None:
        raise UsageError(
            "beam search needs a model with an end symbol, and this one stops by coin",
            hint="decode it with greedy search or by sampling",
        )
