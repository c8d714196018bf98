"""The text of a fit, one batch at a time, with what the model held while reading it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.heads import capture
from saccade.heads.capture import every_so_many
from saccade.lenses.corpus import Corpus
from saccade.lenses.self_text import sample_batch
from saccade.lenses.statistics import POSITION_EVERY
from saccade.store import fingerprint_text

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

# One row in so many is not fitted on: the ridge and the word bias are chosen on it.
HELD_OUT_EVERY = 16


class Batch(NamedTuple):
    """Rows of text, and what the model held after reading every other word."""

    ids: Int[Tensor, "batch pos"]
    z: dict[int, Float[Tensor, "batch kept_pos head d_head"]]
    final: Float[Tensor, "batch kept_pos d_model"]
    held_out: Bool[Tensor, " batch"]
    """True = a row to choose with, not to fit on."""


@runtime_checkable
class Batches(Protocol):
    """Text in numbered batches; each is the same whenever and wherever it is read."""

    @property
    def source(self) -> str:
        """Where the text comes from."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when any word of the text does."""
        ...

    @property
    def n_tokens(self) -> int:
        """In all batches together."""
        ...

    def held_out_rows(self) -> Bool[Tensor, " row"]:
        """True = held out, for every row of all batches."""
        ...

    def __len__(self) -> int: ...

    def read(self, index: int) -> Batch:
        """Batch ``index``, from a forward pass."""
        ...


@dataclass(frozen=True)
class CorpusBatches:
    """Windows of a corpus, ``rows`` at a time.

    The last sixteenth is held out. It lies apart from the rest, because windows of one document are
    too alike: chosen on those, the ridge comes out too weak.
    """

    model: LanguageModel
    corpus: Corpus
    rows: int

    @property
    def source(self) -> str:
        """The corpus's own."""
        return self.corpus.source

    @property
    def fingerprint(self) -> str:
        """The corpus's own."""
        return self.corpus.fingerprint

    @property
    def n_tokens(self) -> int:
        """All windows, held out or not."""
        return self.corpus.n_tokens

    def held_out_rows(self) -> Bool[Tensor, " row"]:
        """The last sixteenth of the windows, at least one."""
        n = len(self.corpus.windows)
        return torch.arange(n) >= n - max(1, n // HELD_OUT_EVERY)

    def __len__(self) -> int:
        return math.ceil(len(self.corpus.windows) / self.rows)

    def read(self, index: int) -> Batch:
        """The windows from ``index * rows`` on."""
        start = index * self.rows
        some = slice(start, start + self.rows)
        ids = self.corpus.windows[some].to(self.model.device)
        captured = capture(self.model, ids, every=POSITION_EVERY)
        return Batch(ids, captured.z, captured.final, self.held_out_rows()[some])


@dataclass(frozen=True)
class SelfBatches:
    """Text that the model writes itself; what it holds is gathered while it writes."""

    model: LanguageModel
    n_rows: int
    rows: int
    window: int
    seed: int

    @property
    def source(self) -> str:
        """The name that stands for it on the command line."""
        return "self"

    @property
    def fingerprint(self) -> str:
        """Of what determines the text: the model and the settings of the sampling."""
        settings = f"{self.model.fingerprint} {self.n_rows} {self.rows} {self.window} {self.seed}"
        return fingerprint_text([settings.encode()])

    @property
    def n_tokens(self) -> int:
        """All rows, held out or not."""
        return self.n_rows * self.window

    def held_out_rows(self) -> Bool[Tensor, " row"]:
        """Every sixteenth row (they are independent of each other), at least one."""
        row = torch.arange(self.n_rows)
        return row % HELD_OUT_EVERY == min(HELD_OUT_EVERY, self.n_rows) - 1

    def __len__(self) -> int:
        return math.ceil(self.n_rows / self.rows)

    def read(self, index: int) -> Batch:
        """Sample batch ``index``."""
        start = index * self.rows
        sampled = sample_batch(
            self.model,
            index=index,
            rows=min(self.rows, self.n_rows - start),
            window=self.window,
            seed=self.seed,
            temperature=1.0,
        )
        held_out = self.held_out_rows()[start : start + self.rows]
        z = {layer: every_so_many(held, POSITION_EVERY) for layer, held in sampled.z.items()}
        return Batch(sampled.ids, z, every_so_many(sampled.final, POSITION_EVERY), held_out)


def windows_of_step(n_windows: int, step: int, *, rows: int, seed: int) -> Tensor:
    """Which windows a step reads: all of them once, in a random order, before any comes again."""
    rows = min(rows, n_windows)
    turn, place = divmod(step - 1, n_windows // rows)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + turn)
    order = torch.randperm(n_windows, generator=generator)
    return order[place * rows : (place + 1) * rows]
