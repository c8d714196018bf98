"""What can be decoded: something that predicts the next symbol from a state.

Two things are told apart, because beam search treats them differently. The *memory* is what was
read from the source: it has one row a sentence, stays the same at every step, and all hypotheses of
a sentence share it, so it is never copied for them. The *state* has one row a hypothesis.

The rows of a sentence stand together: with ``sentence`` rows of memory, ``row`` rows of state and
``beam = row / sentence``, hypothesis ``b`` of sentence ``s`` is row ``s * beam + b``. Attention
then takes the hypotheses of a sentence as so many queries to one memory::

    query = hidden.unflatten(0, (n_sentences, -1))  # [sentence, beam, d_hidden]
    attended = self.attention(query, memory)
    context = attended.context.flatten(0, 1)  # [row, d_value]
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


class Started(NamedTuple):
    """What a stepper needs to begin; both are states in the sense of `saccade.cells.state`."""

    memory: Any
    """Tensors with one row a sentence, or None."""
    state: Any
    """Tensors with one row a sentence, at least one of them."""


class Stepped(NamedTuple):
    """One step of a stepper."""

    log_probs: Float[Tensor, "row d_vocab"]
    """Of the next symbol."""
    state: Any
    """Tensors with one row a hypothesis."""
    weights: Float[Tensor, "row ..."] | None = None
    """Where attention went, if the stepper tells: mostly [row, key_pos]."""
    stop: Float[Tensor, " row"] | None = None
    """The log-odds that the next symbol is the last, of a model that stops by coin."""


@runtime_checkable
class Stepper(Protocol):
    """A model that can be decoded: a translator, a language model, an ensemble of them.

    Decoding does not change a model: put it into its `eval` mode first.
    """

    def start(self, source: Any) -> Started:
        """Read the source, which may be whatever the model reads."""
        ...

    def step(self, tokens: Int[Tensor, " row"], memory: Any, state: Any) -> Stepped:
        """Predict what follows ``tokens``, the last symbol of each hypothesis (first BOS)."""
        ...


def first_tensor(state: Any) -> Tensor:
    """The first tensor in a state, which tells how many rows it has and where it lives.

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
