"""Decoding of CTC: best path, and prefix beam search with an optional language model.

Graves et al., 2006, section 3.2, "prefix search"; as a beam from frame to frame and with a language
model by Hannun et al., 2014 (https://arxiv.org/abs/1408.2873), algorithm 1. A hypothesis is a text
and not a path: the probabilities of its paths are summed, separately for paths that end in a blank
and in the last symbol, because only after a blank can the same symbol follow.

Where we differ:

- All texts of all sentences go through a frame together. Equal texts (one hypothesis has just been
  continued to another) are found by a 64-bit hash, where a program with one text at a time would
  use a dictionary.
- The language model predicts symbols where the paper's predicts words; it runs on new texts only.
  With it a text is ranked by ``log p(text | frames) + weight * log p(text) + bonus * symbols``, and
  at the end by the same plus the model's log-probability of the end.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.cells.cell import replace_rows, select_rows
from saccade.zoo.decoding.stepper import Hypothesis, Stepper
from saccade.zoo.objectives.ctc_loss import BLANK
from saccade.zoo.tasks.vocabulary import BOS, EOS

# The text of the most likely path.


@torch.no_grad()
def ctc_greedy(
    log_probs: Float[Tensor, "batch frame d_vocab"], mask: Bool[Tensor, "batch frame"]
) -> list[Hypothesis]:
    """Take the best symbol of every frame, merge repeated ones, remove blanks.

    Graves et al., 2006, section 3.2, "best path decoding". It is the most likely path, and nearly
    always gives the most likely text, but many less likely paths can add up to another text:
    `prefix_beam` sums them. ``log_prob`` is the path's.

    >>> said = torch.tensor([[4, 4, 0, 4, 5, 0]])
    >>> log_probs = torch.nn.functional.one_hot(said, 6).float().log_softmax(-1)
    >>> ctc_greedy(log_probs, torch.ones(1, 6, dtype=torch.bool))[0].ids
    [4, 4, 5]
    """
    best = log_probs.max(-1)
    said = best.indices.masked_fill(~mask, BLANK)
    before = torch.nn.functional.pad(said[:, :-1], (1, 0), value=BLANK)
    is_new = (said != BLANK) & (said != before)
    total = best.values.masked_fill(~mask, 0.0).sum(1).tolist()
    return [
        Hypothesis(row[new].tolist(), log_prob, log_prob)
        for row, new, log_prob in zip(said, is_new, total, strict=True)
    ]


# Language model fusion for prefix beam search.

STAY = -1
"""Instead of a symbol: the text is unchanged."""


class Chosen(NamedTuple):
    """The origin of each text of a beam."""

    parent: Int[Tensor, "sentence beam"]
    token: Int[Tensor, "sentence beam"]
    """The appended symbol; STAY if there is none."""


class PrefixFusion:
    """A language model that follows the beam; its state has one row per text.

    Args:
        like: Any tensor of the beam, [sentence, beam], for its shape and dtype.
    """

    def __init__(
        self,
        model: Stepper | None,
        like: Float[Tensor, "sentence beam"],
        *,
        d_vocab: int,
        weight: float,
        bonus: float,
    ) -> None:
        self.model, self.weight, self.bonus = model, weight, bonus
        self.shape, self.memory, self.state = like.shape, None, None
        self.log_probs: Float[Tensor, "row d_vocab"] | None = None
        if model is None:
            if bonus:
                self.log_probs = like.new_zeros(like.numel(), d_vocab)
            return
        self.memory, state = model.start(like.numel())
        begin = torch.full((like.numel(),), BOS, device=like.device)
        begun = model.step(begin, self.memory, state)
        found = begun.log_probs.shape[1]
        if found != d_vocab:
            raise UsageError(
                f"the recogniser has {d_vocab} symbols and the language model {found}",
                hint="train the language model with the recogniser's alphabet",
            )
        self.log_probs, self.state = begun.log_probs.to(like), begun.state

    @property
    def scores(self) -> Float[Tensor, "sentence beam d_vocab"] | None:
        """Score of each symbol after each text; None if all are zero."""
        if self.log_probs is None:
            return None
        return (self.weight * self.log_probs + self.bonus).unflatten(0, self.shape)

    @property
    def ending(self) -> Float[Tensor, "sentence beam"] | float:
        """Score of the end after each text."""
        if self.model is None or self.log_probs is None:
            return 0.0
        return self.weight * self.log_probs[:, EOS].unflatten(0, self.shape)

    def follow(self, chosen: Chosen) -> None:
        """Run the model on the appended symbols; unchanged texts keep their state."""
        if self.model is None or self.log_probs is None:
            return
        n, size = self.shape
        first = torch.arange(0, n * size, size, device=chosen.parent.device)[:, None]
        rows = (chosen.parent + first).flatten()
        state: Any = select_rows(self.state, rows)
        log_probs = self.log_probs[rows]
        token = chosen.token.flatten()
        new = (token != STAY).nonzero()[:, 0]
        if len(new):
            stepped = self.model.step(token[new], self.memory, select_rows(state, new))
            log_probs = log_probs.index_copy(0, new, stepped.log_probs.to(log_probs))
            state = replace_rows(state, new, stepped.state)
        self.log_probs, self.state = log_probs, state


NEVER = -torch.inf
# Hashes of texts are polynomials in this, modulo 2^64 (Knuth's multiplier for linear congruences).
# A collision among some thousand texts is less likely than a memory error.
MULTIPLIER = 6364136223846793005


class _Beam(NamedTuple):
    """The texts of each sentence, the best first."""

    blank: Float[Tensor, "sentence beam"]
    """Log-probability of the paths that end in a blank."""
    symbol: Float[Tensor, "sentence beam"]
    """Log-probability of the paths that end in the last symbol."""
    model: Float[Tensor, "sentence beam"]
    """Score of the language model and the bonus."""
    last: Int[Tensor, "sentence beam"]
    """The last symbol; BLANK if there is none."""
    number: Int[Tensor, "sentence beam"]
    """Hash of the text."""

    @property
    def log_prob(self) -> Float[Tensor, "sentence beam"]:
        return torch.logaddexp(self.blank, self.symbol)


@torch.no_grad()
def prefix_beam(
    log_probs: Float[Tensor, "sentence frame d_vocab"],
    mask: Bool[Tensor, "sentence frame"],
    *,
    size: int,
    language_model: Stepper | None = None,
    weight: float = 0.5,
    bonus: float = 0.0,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The ``n_best`` texts of each sentence, best first.

    Args:
        log_probs: Of each symbol, including BLANK, at each frame.
        mask: True = a real frame; these come first.
        size: Beam size: texts per sentence at each frame.
        language_model: With the same symbols; its ``start`` takes the number of sentences.
        weight: Weight of the language model.
        bonus: Bonus per symbol, because a language model prefers short texts.
    """
    if size < 1 or not 1 <= n_best <= size:
        raise UsageError(
            f"expected a beam of 1 or more, and no more of the best than it keeps, got size {size} "
            f"and n_best {n_best}",
            hint="raise size",
        )
    n, n_frames, d_vocab = log_probs.shape
    beam = _first(n, size, log_probs)
    fused = PrefixFusion(language_model, beam.blank, d_vocab=d_vocab, weight=weight, bonus=bonus)
    chosen: list[Chosen] = []
    same = torch.arange(size, device=mask.device).expand(n, size)
    stay = Chosen(same, torch.full_like(same, STAY))
    for frame in range(n_frames):
        new, step = _advance(beam, log_probs[:, frame], fused.scores)
        is_real = mask[:, frame, None]
        step = Chosen(*(a.where(is_real, b) for a, b in zip(step, stay, strict=True)))
        beam = _Beam(*(a.where(is_real, b) for a, b in zip(new, beam, strict=True)))
        fused.follow(step)
        chosen.append(step)
    rank = beam.log_prob + beam.model + fused.ending
    best = rank.topk(n_best)
    texts = _read_back(chosen, best.indices)
    return _hypotheses(texts, beam.log_prob.gather(1, best.indices), best.values)


def _first(n: int, size: int, log_probs: Tensor) -> _Beam:
    """The empty text, and unused slots."""
    never = log_probs.new_full((n, size), NEVER)
    blank = never.clone()
    blank[:, 0] = 0.0
    last = torch.full((n, size), BLANK, device=log_probs.device)
    return _Beam(blank, never, torch.zeros_like(never), last, torch.ones_like(last))


def _advance(
    beam: _Beam,
    log_probs: Float[Tensor, "sentence d_vocab"],
    gains: Float[Tensor, "sentence beam d_vocab"] | None,
) -> tuple[_Beam, Chosen]:
    """One frame: every text stays or is continued by each symbol; keep the best."""
    size, d_vocab = beam.last.shape[1], log_probs.shape[1]
    total = beam.log_prob
    of_last = log_probs.gather(1, beam.last)
    to_blank = total + log_probs[:, BLANK, None]
    to_symbol = beam.symbol + of_last
    on = total[:, :, None] + log_probs[:, None]  # [sentence, beam, d_vocab]
    # The last symbol again is a new symbol only after a blank.
    on.scatter_(2, beam.last[:, :, None], (beam.blank + of_last)[:, :, None])
    on[:, :, BLANK] = NEVER
    # Text i continued by the last symbol of text j, where that makes it text j: [sentence, i, j].
    made = beam.number[:, :, None] * MULTIPLIER + beam.last[:, None]
    is_known = (made == beam.number[:, None]) & (total > NEVER)[:, None]
    at = beam.last[:, None].expand(-1, size, -1)
    joined = on.gather(2, at).where(is_known, NEVER)
    to_symbol = torch.logaddexp(to_symbol, joined.logsumexp(1))
    on.scatter_reduce_(2, at, torch.where(is_known, NEVER, -NEVER).to(on), "amin")
    stays = torch.logaddexp(to_blank, to_symbol)[:, :, None]
    ranked = torch.cat([stays, on if gains is None else on + gains], dim=2) + beam.model[:, :, None]
    best = ranked.flatten(1).topk(size).indices
    parent, token = best // (d_vocab + 1), best % (d_vocab + 1) - 1
    is_new, symbol = token != STAY, token.clamp_min(0)
    flat = parent * d_vocab + symbol
    gained = 0.0 if gains is None else gains.flatten(1).gather(1, flat).where(is_new, 0.0)
    before = [each.gather(1, parent) for each in (to_blank, to_symbol, *beam[2:])]
    blank, spoken, model, last, number = before
    new = _Beam(
        blank=blank.masked_fill(is_new, NEVER),
        symbol=on.flatten(1).gather(1, flat).where(is_new, spoken),
        model=model + gained,
        last=symbol.where(is_new, last),
        number=(number * MULTIPLIER + symbol).where(is_new, number),
    )
    return new, Chosen(parent, token)


def _read_back(
    chosen: list[Chosen], at: Int[Tensor, "sentence n"]
) -> Int[Tensor, "sentence n frame"]:
    """The symbol appended to each text at each frame."""
    tokens = []
    for parent, token in reversed(chosen):
        tokens.append(token.gather(1, at))
        at = parent.gather(1, at)
    return torch.stack(tokens[::-1], dim=2)


def _hypotheses(texts: Tensor, log_prob: Tensor, score: Tensor) -> list[list[Hypothesis]]:
    sentences = zip(texts.tolist(), log_prob.tolist(), score.tolist(), strict=True)
    return [
        [
            Hypothesis([each for each in text if each != STAY], one, rank)
            for text, one, rank in zip(*rows, strict=True)
            if rank > NEVER
        ]
        for rows in sentences
    ]
