"""The language model beside a prefix beam search: what it says of each symbol behind each text."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.cells.state import replace_rows, select_rows
from saccade.decoding.stepper import Stepper
from saccade.errors import UsageError
from saccade.tasks.symbols import BOS, EOS

STAY = -1
"""Instead of a symbol: the text is what it was."""


class Chosen(NamedTuple):
    """Where each text of a beam comes from."""

    parent: Int[Tensor, "sentence beam"]
    token: Int[Tensor, "sentence beam"]
    """The symbol that was put to it; STAY if none was."""


class PrefixFusion:
    """Reads along: its state is that of all texts of a beam, one row a text.

    Args:
        like: Any numbers of the beam, [sentence, beam]: their shape and kind.
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
        """What each text gains with each symbol; None if all gain nothing."""
        if self.log_probs is None:
            return None
        return (self.weight * self.log_probs + self.bonus).unflatten(0, self.shape)

    @property
    def ending(self) -> Float[Tensor, "sentence beam"] | float:
        """What each text gains by ending."""
        if self.model is None or self.log_probs is None:
            return 0.0
        return self.weight * self.log_probs[:, EOS].unflatten(0, self.shape)

    def follow(self, chosen: Chosen) -> None:
        """Let the model read what was put to the texts; of the others it knows all already."""
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
