"""Beam search: keep the best few hypotheses of every sentence at every length.

Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), section 3.2, with the length penalty of
Wu et al., 2016 (https://arxiv.org/abs/1609.08144), section 7, eq. 14: a hypothesis of n symbols
(the end symbol counted) is ranked by ``log_prob / ((5 + n) / 6) ** length_penalty``.

Where we differ:

- A finished hypothesis leaves the beam and the next best takes its slot, so the beam never narrows.
  To finish it must be among the ``size`` best continuations: otherwise every hypothesis would be a
  candidate at every length, and very short ones would win too often.
- A sentence is done only when no open hypothesis could still overtake the finished ones, at any
  length up to the limit. Stopping at the first end symbol is wrong with a length penalty.
- At the length limit the only continuation is the end symbol, so that all hypotheses are complete.

All sentences and hypotheses are searched at once; a sentence that is done leaves the batch.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.cells.cell import select_rows
from saccade.zoo.decoding.stepper import Hypothesis, Stepper, Table, first_tensor, to_hypotheses
from saccade.zoo.tasks.vocabulary import BOS, EOS

# The best continuations among all hypotheses of a sentence and all symbols.

# `topk` over a whole vocabulary costs more than half of the matrix product that made it (measured:
# 8,000 symbols, 320 rows of 256); with the maximum of each block first, a fifth of that. The size
# is a multiple of the widest vector register, 16 floats.
BLOCK = 128


class Largest(NamedTuple):
    """The k best, best first."""

    value: Float[Tensor, "sentence k"]
    beam: Int[Tensor, "sentence k"]
    """Which hypothesis is continued."""
    token: Int[Tensor, "sentence k"]
    """The symbol that continues it."""


def largest_sums(
    so_far: Float[Tensor, "sentence beam"],
    log_probs: Float[Tensor, "sentence beam d_vocab"],
    k: int,
) -> Largest:
    """The k largest ``so_far + log_probs`` of each sentence, over hypotheses and symbols.

    The k largest numbers lie in the k blocks with the largest maxima, so only those are sorted.
    """
    n_blocks, d_vocab = log_probs.shape[2] // BLOCK, log_probs.shape[2]
    n_beams = log_probs.shape[1]
    if n_beams * n_blocks <= k:
        value, at = (so_far[:, :, None] + log_probs).flatten(1).topk(k)
        return Largest(value, at // d_vocab, at % d_vocab)
    # The remaining symbols beyond the last full block are always candidates.
    whole = log_probs[:, :, : n_blocks * BLOCK].unflatten(2, (n_blocks, BLOCK))
    block_best = whole.amax(-1) + so_far[:, :, None]  # [sentence, beam, block]
    at = block_best.flatten(1).topk(k, sorted=False).indices  # [sentence, k]
    beam, block = at // n_blocks, at % n_blocks
    sentence = torch.arange(len(log_probs), device=at.device)[:, None]
    inside = whole[sentence, beam, block] + so_far.gather(1, beam)[:, :, None]
    rest = log_probs[:, :, n_blocks * BLOCK :] + so_far[:, :, None]
    value, at = torch.cat([inside.flatten(1), rest.flatten(1)], dim=1).topk(k)
    return Largest(value, *_where(at, beam, block, n_blocks=n_blocks, d_vocab=d_vocab))


def _where(
    at: Int[Tensor, "sentence k"],
    beam: Int[Tensor, "sentence k"],
    block: Int[Tensor, "sentence k"],
    *,
    n_blocks: int,
    d_vocab: int,
) -> tuple[Int[Tensor, "sentence k"], Int[Tensor, "sentence k"]]:
    """The hypothesis and symbol of each candidate index."""
    k, n_rest = at.shape[1], max(1, d_vocab - n_blocks * BLOCK)
    is_inside = at < k * BLOCK
    of = (at // BLOCK).clamp_max(k - 1)
    beyond = at - k * BLOCK
    in_beam = torch.where(is_inside, beam.gather(1, of), beyond // n_rest)
    in_block = block.gather(1, of) * BLOCK + at % BLOCK
    return in_beam, torch.where(is_inside, in_block, n_blocks * BLOCK + beyond % n_rest)


# The best finished hypotheses of each sentence during a beam search.


def length_norm(length: Tensor | int, length_penalty: float) -> Tensor | float:
    """The divisor of a log-probability (Wu et al., 2016, eq. 14).

    >>> length_norm(1, 0.7), length_norm(13, 1.0)
    (1.0, 3.0)
    """
    return ((5 + length) / 6) ** length_penalty


class FinishedHypotheses:
    """For each sentence its ``n_best`` finished hypotheses so far, best first."""

    def __init__(
        self, n_sentences: int, n_best: int, *, length_penalty: float, device: torch.device
    ) -> None:
        self.length_penalty = length_penalty
        self.score = torch.full((n_sentences, n_best), -torch.inf, device=device)
        self.log_prob = self.score.clone()
        self.step = torch.zeros_like(self.score, dtype=torch.long)
        """The step at which it ended: its length with the end symbol."""
        self.beam = torch.zeros_like(self.step)
        """Its index in the beam before that step."""

    def add(
        self, log_prob: Float[Tensor, "open beam"], *, sentence: Int[Tensor, " open"], step: int
    ) -> None:
        """Add hypotheses that ended at this step; those that did not have minus infinity."""
        score = log_prob / length_norm(step, self.length_penalty)
        if not (score > self.score[sentence, -1:]).any():
            return
        place = torch.arange(score.shape[1], device=score.device).expand_as(score)
        self.score[sentence], at = torch.cat([self.score[sentence], score], dim=1).topk(
            self.score.shape[1]
        )
        for mine, new in (
            (self.log_prob, log_prob),
            (self.step, torch.full_like(place, step)),
            (self.beam, place),
        ):
            mine[sentence] = torch.cat([mine[sentence], new], dim=1).gather(1, at)

    def could_be_beaten(
        self,
        log_prob: Float[Tensor, " open"],
        sentence: Int[Tensor, " open"],
        *,
        step: int,
        limit: Int[Tensor, " open"],
    ) -> Bool[Tensor, " open"]:
        """True where an open hypothesis could still overtake the worst finished one.

        A log-probability only falls, and the norm is monotonic in the length; so the upper bound is
        the current log-probability over the norm of the next or the last length.

        Args:
            log_prob: Of the best open hypothesis.
            limit: The maximum length of a hypothesis.
        """
        soon = log_prob / length_norm(step + 1, self.length_penalty)
        late = log_prob / length_norm(limit, self.length_penalty)
        return (torch.maximum(soon, late) > self.score[sentence, -1]) & (step < limit)


# Back-pointers of a beam search.


class BackPointers:
    """For each step and open hypothesis its last symbol and the hypothesis it continues.

    No sequence is copied during the search; sequences are read once, backwards, at its end.
    """

    def __init__(self, n_sentences: int) -> None:
        self.n_sentences = n_sentences
        self.parent: list[Int[Tensor, "sentence beam"]] = []
        self.token: list[Int[Tensor, "sentence beam"]] = []
        self.weights: list[tuple[Tensor, Tensor]] = []

    def add(
        self,
        sentence: Int[Tensor, " open"],
        parent: Int[Tensor, "open beam"],
        token: Int[Tensor, "open beam"],
        weights: Float[Tensor, "row ..."] | None,
    ) -> None:
        """Record one step of the sentences that are still searched."""
        self.parent.append(self._whole(parent, sentence))
        self.token.append(self._whole(token, sentence))
        if weights is not None:
            self.weights.append((sentence, weights.unflatten(0, (len(sentence), -1))))

    def read(self, finished: FinishedHypotheses) -> Table:
        """Trace the finished hypotheses back to their first symbols."""
        at = finished.beam  # their indices in the beam before the current step
        ids, weights = [], []
        for step in range(len(self.token), 0, -1):
            parent, token = self.parent[step - 1], self.token[step - 1]
            is_inside = finished.step > step
            here = at.clamp_max(token.shape[1] - 1)
            ids.append(token.gather(1, here))
            at = torch.where(is_inside, parent.gather(1, here), at)
            if self.weights:
                weights.append(self._weights_at(at, step))
        return Table(
            ids=torch.stack(ids[::-1], dim=2),
            length=(finished.step - 1).clamp_min(0),
            steps=finished.step,
            log_prob=finished.log_prob,
            score=finished.score,
            weights=torch.stack(weights[::-1], dim=2) if weights else None,
        )

    def _weights_at(
        self, at: Int[Tensor, "sentence n"], step: int
    ) -> Float[Tensor, "sentence n ..."]:
        sentence, weights = self.weights[step - 1]  # [open], [open, beam, ...
        rows = torch.arange(len(sentence), device=at.device)[:, None]
        chosen = weights[rows, at[sentence].clamp_max(weights.shape[1] - 1)]
        return self._whole(chosen, sentence)

    def _whole(self, part: Tensor, sentence: Int[Tensor, " open"]) -> Tensor:
        """Values of the open sentences, scattered over all sentences."""
        if len(sentence) == self.n_sentences:
            return part
        return part.new_zeros(self.n_sentences, *part.shape[1:]).index_copy_(0, sentence, part)


class BeamResult(NamedTuple):
    """Result of a beam search."""

    hypotheses: list[list[Hypothesis]]
    """The hypotheses of each sentence, best first."""

    @property
    def best(self) -> list[Hypothesis]:
        """The best hypothesis of each sentence."""
        assert all(self.hypotheses), "nothing can be said: the end symbol has no probability"
        return [found[0] for found in self.hypotheses]


class _Open(NamedTuple):
    """The open hypotheses, the best of each sentence first."""

    log_prob: Float[Tensor, "sentence beam"]
    parent: Int[Tensor, "sentence beam"]
    """The hypothesis of the previous step that it continues."""
    token: Int[Tensor, "sentence beam"]


class _Expanded(NamedTuple):
    """The open hypotheses after one step."""

    open: _Open
    ended: Float[Tensor, "sentence old_beam"]
    """Log-probability of each with an end symbol; minus infinity where it does not end."""


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
        size: Beam size: hypotheses per sentence that are continued at each step.
        max_length: Maximum number of symbols, with the end symbol; one number, or one for each
        sentence. With a length penalty the search runs while any hypothesis up to this length could
        win, so a limit that fits the sentence saves time.
        length_penalty: 0 ranks by probability, which prefers short sequences; 1 nearly by mean
        log-probability per symbol.
        n_best: Number of hypotheses to return per sentence.
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
    finished = FinishedHypotheses(
        len(first), n_best, length_penalty=length_penalty, device=first.device
    )
    pointers = BackPointers(len(first))
    for step in range(1, int(limit.max()) + 1):
        stepped = stepper.step(tokens, memory, state)
        _refuse_a_coin(stepped.stop)
        # In full precision: sums of 16-bit numbers are too coarse for ranking.
        log_probs = stepped.log_probs.float().unflatten(0, log_prob.shape)
        still_open, ended = _expand(log_prob, log_probs, size=size, must_end=limit == step)
        finished.add(ended, sentence=sentence, step=step)
        pointers.add(sentence, still_open.parent, still_open.token, stepped.weights)
        could_win = finished.could_be_beaten(
            still_open.log_prob[:, 0], sentence, step=step, limit=limit
        )
        rows = still_open.parent + _first_rows(log_prob)
        if not could_win.all():
            alive = could_win.nonzero()[:, 0]
            memory, sentence, limit = select_rows((memory, sentence, limit), alive)
            still_open, rows = select_rows((still_open, rows), alive)
        if len(sentence) == 0:
            break
        state = select_rows(stepped.state, rows.flatten())
        log_prob, tokens = still_open.log_prob, still_open.token.flatten()
    return BeamResult(to_hypotheses(pointers.read(finished)))


def _expand(
    log_prob: Float[Tensor, "sentence old_beam"],
    log_probs: Float[Tensor, "sentence old_beam d_vocab"],
    *,
    size: int,
    must_end: Bool[Tensor, " sentence"],
) -> _Expanded:
    """Split the best continuations into finished and open ones."""
    n_beams, n_all = log_prob.shape[1], log_probs[0].numel()
    # Each hypothesis has one end symbol, so among twice the size enough stay open.
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
    """The first row of the state for each sentence."""
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
