"""Greedy search and sampling, symbol by symbol."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.cells.cell import select_rows
from saccade.zoo.decoding.stepper import (
    Ending,
    Hypothesis,
    Stepped,
    Stepper,
    Table,
    ending,
    first_tensor,
    to_hypotheses,
)
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD

# The loop that greedy search and sampling share.

Choose = Callable[[Tensor], Tensor]
"""From log-probabilities [row, d_vocab] to symbols [row]."""
End = Callable[[Tensor, Tensor | None], Ending]
"""From the chosen symbols and the stepper's ``stop`` to which sequences end there."""


@torch.no_grad()
def decode_step_by_step(
    stepper: Stepper, source: Any, *, choose: Choose, end: End, max_length: int, n: int = 1
) -> list[list[Hypothesis]]:
    """Decode ``n`` sequences per sentence, until each ends or reaches ``max_length``.

    A sentence leaves the batch when all its sequences have ended.

    Args:
        max_length: Maximum number of symbols, with the end symbol; longer sequences are cut.
    """
    memory, state = stepper.start(source)
    first = first_tensor(state)
    sentence = torch.arange(len(first), device=first.device)
    state = select_rows(state, sentence.repeat_interleave(n)) if n > 1 else state
    tokens = torch.full((len(first) * n,), BOS, device=first.device)
    record = _Record(len(first), n, first.device)
    is_open = torch.ones(len(first), n, dtype=torch.bool, device=first.device)
    for _ in range(max_length):
        stepped = stepper.step(tokens, memory, state)
        tokens, state = choose(stepped.log_probs), stepped.state
        ending = end(tokens, stepped.stop)
        record.add(stepped, tokens, ending, sentence=sentence, is_open=is_open)
        is_open = is_open & ~ending.is_last.view(-1, n)
        kept = is_open.any(1)
        if not kept.any():
            break
        # A finished sequence is stepped along with the open ones of its sentence, and ignored.
        if not kept.all():
            memory = select_rows(memory, kept.nonzero()[:, 0])
            rows = kept.repeat_interleave(n).nonzero()[:, 0]
            tokens, state = select_rows((tokens, state), rows)
            sentence, is_open = sentence[kept], is_open[kept]
    return to_hypotheses(record.table())


class _Record:
    """The choices at each step, for all sentences of the batch."""

    def __init__(self, n_sentences: int, n: int, device: torch.device) -> None:
        self.shape = (n_sentences, n)
        self.log_prob = torch.zeros(self.shape, device=device)
        self.steps = torch.zeros(self.shape, dtype=torch.long, device=device)
        self.length = torch.zeros(self.shape, dtype=torch.long, device=device)
        self.ids: list[Tensor] = []
        self.weights: list[Tensor] = []

    def add(
        self,
        stepped: Stepped,
        tokens: Int[Tensor, " row"],
        ending: Ending,
        *,
        sentence: Int[Tensor, " open"],
        is_open: Bool[Tensor, "open n"],
    ) -> None:
        """Record one step of the sentences that are still in the batch."""
        gained = stepped.log_probs.gather(1, tokens[:, None])[:, 0] + ending.log_prob
        self.log_prob[sentence] += gained.view_as(is_open).masked_fill(~is_open, 0.0)
        self.steps[sentence] += is_open
        is_end_symbol = (tokens == EOS).view_as(is_open) & (stepped.stop is None)
        self.length[sentence] += is_open & ~is_end_symbol
        self.ids.append(self._whole(tokens, sentence, fill=PAD))
        if stepped.weights is not None:
            self.weights.append(self._whole(stepped.weights, sentence, fill=0))

    def _whole(
        self, rows: Float[Tensor, "row ..."] | Int[Tensor, " row"], sentence: Tensor, fill: int
    ) -> Tensor:
        """Values of the sentences in the batch, scattered over all sentences."""
        whole = rows.new_full((*self.shape, *rows.shape[1:]), fill)
        whole[sentence] = rows.unflatten(0, (len(sentence), -1))
        return whole

    def table(self) -> Table:
        score = self.log_prob
        ids = torch.stack(self.ids, dim=2) if self.ids else self.length.new_zeros(*self.shape, 0)
        weights = torch.stack(self.weights, dim=2) if self.weights else None
        return Table(ids, self.length, self.steps, self.log_prob, score, weights)


def greedy(stepper: Stepper, source: Any, *, max_length: int) -> list[Hypothesis]:
    """Decode one hypothesis per sentence with the most likely symbol at every step.

    Args:
        max_length: Maximum number of symbols, with the end symbol; longer sequences are cut.
    """
    found = decode_step_by_step(
        stepper,
        source,
        choose=lambda log_probs: torch.argmax(log_probs, dim=-1),
        end=ending,
        max_length=max_length,
    )
    return [only for (only,) in found]


# Sampling from the model's predictions.


def sample(
    stepper: Stepper,
    source: Any,
    *,
    max_length: int,
    n: int = 1,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> list[list[Hypothesis]]:
    """Sample ``n`` sequences per sentence; ``log_prob`` is the model's, at temperature 1.

    Args:
        max_length: Maximum number of symbols, with the end symbol; longer sequences are cut.
        temperature: Divides the log-probabilities: below 1 sharpens, above 1 flattens.
        top_k: Sample only among this many most likely symbols.
    """
    check_draw(temperature=temperature, top_k=top_k)
    return decode_step_by_step(
        stepper,
        source,
        choose=partial(draw, temperature=temperature, top_k=top_k, generator=generator),
        end=partial(ending, is_sampled=True, generator=generator),
        max_length=max_length,
        n=n,
    )


def check_draw(*, temperature: float, top_k: int | None) -> None:
    """Refuse invalid sampling settings."""
    if temperature <= 0:
        raise UsageError(
            f"the temperature must be above 0, got {temperature}",
            hint="for the most likely symbol at every step use greedy search",
        )
    if top_k is not None and top_k < 1:
        raise UsageError(
            f"top_k must be at least 1, got {top_k}", hint="leave it out to draw among all symbols"
        )


def draw(
    log_probs: Float[Tensor, "row d_vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " row"]:
    """One symbol per row, sampled with probability proportional to ``p ** (1 / temperature)``."""
    symbols = None
    if top_k is not None and top_k < log_probs.shape[1]:
        log_probs, symbols = log_probs.topk(top_k, dim=-1)
    # The maximum is scaled to 1 first, so that a low temperature cannot make all of them 0.
    # A temperature that the dtype rounds to 0 or infinity would give 0 / 0 or inf / inf.
    range_ = torch.finfo(log_probs.dtype)
    temperature = min(max(temperature, range_.tiny), range_.max)
    p = ((log_probs - log_probs.amax(-1, keepdim=True)) / temperature).exp()
    drawn = torch.multinomial(p, 1, generator=generator)
    return (drawn if symbols is None else symbols.gather(1, drawn))[:, 0]
