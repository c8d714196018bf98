"""The interface of decoding: a stepper predicts the next symbol from a state.

Memory and state are separate, because beam search treats them differently. The *memory* encodes the
source: it has one row per sentence, is constant over steps, and is shared by all hypotheses of a
sentence, so it is never copied. The *state* has one row per hypothesis.

The rows of a sentence are contiguous: with ``sentence`` rows of memory, ``row`` rows of state and
``beam = row / sentence``, hypothesis ``b`` of sentence ``s`` is row ``s * beam + b``. Attention
then treats the hypotheses of a sentence as queries to one memory::

    query = hidden.unflatten(0, (n_sentences, -1))  # [sentence, beam, d_hidden]
    attended = self.attention(query, memory)
    context = attended.context.flatten(0, 1)  # [row, d_value]
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.tasks.vocabulary import EOS

# A sequence of symbols that a model proposes.


class Hypothesis(NamedTuple):
    """One proposed sequence."""

    ids: list[int]
    """Its symbols, without the end symbol."""
    log_prob: float
    """Log-probability of all its symbols and of its end, if it has one."""
    score: float
    """The ranking score: ``log_prob``, normalised by length if requested."""
    weights: Float[Tensor, "step ..."] | None = None
    """Attention weights of each step, including the step that chose the end symbol."""


class Table(NamedTuple):
    """The hypotheses of many sentences as tensors; entries beyond the last step are unused."""

    ids: Int[Tensor, "sentence n step"]
    length: Int[Tensor, "sentence n"]
    """Number of symbols without the end symbol."""
    steps: Int[Tensor, "sentence n"]
    """Number of symbols with the end symbol."""
    log_prob: Float[Tensor, "sentence n"]
    score: Float[Tensor, "sentence n"]
    """Minus infinity where there is no hypothesis."""
    weights: Float[Tensor, "sentence n step ..."] | None


def to_hypotheses(table: Table) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, in the order of the table."""
    found: list[list[Hypothesis]] = []
    columns = (table.ids, table.length, table.steps, table.log_prob, table.score)
    for s, sentence in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        found.append([])
        for i, (ids, length, steps, log_prob, score) in enumerate(zip(*sentence, strict=True)):
            if score > float("-inf"):
                weights = None if table.weights is None else table.weights[s, i, :steps]
                found[-1].append(Hypothesis(ids[:length], log_prob, score, weights))
    return found


class Started(NamedTuple):
    """The start of decoding; both are states in the sense of `saccade.zoo.cells.cell`."""

    memory: Any
    """Tensors with one row per sentence, or None."""
    state: Any
    """Tensors with one row per sentence, at least one."""


class Stepped(NamedTuple):
    """One step of a stepper."""

    log_probs: Float[Tensor, "row d_vocab"]
    """Log-probabilities of the next symbol."""
    state: Any
    """Tensors with one row per hypothesis."""
    weights: Float[Tensor, "row ..."] | None = None
    """Attention weights, if the stepper returns them: mostly [row, key_pos]."""
    stop: Float[Tensor, " row"] | None = None
    """The log-odds that the next symbol is the last, of a model with a stop output."""


@runtime_checkable
class Stepper(Protocol):
    """A model that can be decoded: a translator, a language model, an ensemble of them.

    Decoding does not set `eval` mode: the caller does.
    """

    def start(self, source: Any) -> Started:
        """Encode the source, in whatever form the model takes."""
        ...

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Predict what follows ``tokens``, the last symbol of each hypothesis (first BOS)."""
        ...


def first_tensor(state: Any) -> Tensor:
    """The first tensor in a state, which has its number of rows and its device.

    >>> import torch
    >>> len(first_tensor((None, (torch.zeros(3, 5),))))
    3
    """
    found = _first(state)
    assert found is not None, f"a state must hold a tensor, got {state!r}"
    return found


def _first(state: Any) -> Tensor | None:
    if isinstance(state, Tensor):
        return state
    parts = state if isinstance(state, tuple) else ()
    return next((tensor for tensor in map(_first, parts) if tensor is not None), None)


# When a sequence ends: three ways, each for training and for decoding.
#
# - *End symbol*: the targets end in EOS, and a sequence ends where the model says it. Only for
# models that produce symbols.
# - *Coin*: the model has one more output, the log-odds that this step is the last. `coin_loss`
# trains it; a stepper returns it as ``stop``.
# - *Predicted length*: the model predicts at the start how many steps there will be
# (`LengthPredictor`) and is fed how many are left. A stepper returns ``stop_when_none_left`` as
# ``stop``: a coin without chance.
#
# Goodfellow, Bengio and Courville, 2016 (https://www.deeplearningbook.org), section 10.2.3.


class Ending(NamedTuple):
    """Which sequences end with the symbol just chosen."""

    is_last: Bool[Tensor, " row"]
    log_prob: Float[Tensor, " row"]
    """Log-probability of the coin's result; zero for an end symbol, which counts as a symbol."""


def ending(
    tokens: Int[Tensor, " row"],
    stop: Float[Tensor, " row"] | None,
    *,
    is_sampled: bool = False,
    generator: torch.Generator | None = None,
) -> Ending:
    """Whether each sequence ends: by its coin if it has one, else by the end symbol.

    Args:
        stop: Log-odds of the coin, as a stepper returns it.
        is_sampled: Sample the coin; otherwise take the more likely result.
    """
    if stop is None:
        return Ending(tokens == EOS, torch.zeros(len(tokens), device=tokens.device))
    if is_sampled:
        toss = torch.rand(stop.shape, generator=generator, device=stop.device)
        is_last = toss < stop.sigmoid()
    else:
        is_last = stop > 0
    return Ending(is_last, functional.logsigmoid(torch.where(is_last, stop, -stop)))


def coin_loss(
    stop: Float[Tensor, "batch pos"], mask: Bool[Tensor, "batch pos"]
) -> Float[Tensor, ""]:
    """Mean cross-entropy of the coin: 1 at the last real position, 0 before it."""
    later = functional.pad(mask[:, 1:], (0, 1))
    is_last = mask & ~later
    loss = functional.binary_cross_entropy_with_logits(stop, is_last.to(stop), reduction="none")
    return torch.where(mask, loss, 0.0).sum() / mask.sum().clamp_min(1)


def stop_when_none_left(remaining: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
    """Log-odds of stopping for a model that counts down: infinite once nothing is left.

    Args:
        remaining: Steps left after the one whose symbol is chosen now.

    >>> stop_when_none_left(torch.tensor([2, 1, 0]))
    tensor([-inf, -inf, inf])
    """
    certain = torch.full(remaining.shape, torch.inf, device=remaining.device)
    return torch.where(remaining <= 0, certain, -certain)


class LengthPredictor(nn.Module):
    """Predict how long the output will be from a summary of the input.

    A softmax over the lengths 1 to ``max_length``: unlike a regression it cannot predict an invalid
    length, and it can be bimodal.
    """

    def __init__(self, d_input: int, *, max_length: int) -> None:
        super().__init__()
        self.max_length = max_length
        self.logits = nn.Linear(d_input, max_length)

    def forward(self, summary: Float[Tensor, "batch d_input"]) -> Int[Tensor, " batch"]:
        """The most likely length of each row."""
        return self.logits(summary).argmax(-1) + 1

    def loss(
        self, summary: Float[Tensor, "batch d_input"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, ""]:
        """Mean negative log-likelihood of the true lengths; longer ones count as the longest."""
        return functional.cross_entropy(self.logits(summary), lengths.clamp(1, self.max_length) - 1)
