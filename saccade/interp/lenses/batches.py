"""The text of a fit, one batch at a time, with the model's activations on it.

A hash of a row's ids decides which of its positions are read, and which of those are sampled for
model selection. The sums and the sample of a text are therefore the same for any split into
batches, processes or shards.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.interp.heads.capture import at_positions, capture
from saccade.interp.lenses.corpus import HELD_OUT_EVERY, Corpus
from saccade.interp.lenses.self_text import sample_batch
from saccade.interp.lenses.statistics import POSITION_EVERY
from saccade.store.fingerprint import fingerprint_text

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


class Batch(NamedTuple):
    """Rows of text, and the model's activations at every other position."""

    ids: Int[Tensor, "batch pos"]
    positions: Int[Tensor, "batch kept_pos"]
    z: dict[int, Float[Tensor, "batch kept_pos head d_head"]]
    final: Float[Tensor, "batch kept_pos d_model"]
    held_out: Bool[Tensor, " batch"]
    """True = a row for model selection, not for fitting."""


@runtime_checkable
class Batches(Protocol):
    """Text in numbered batches; reading a batch again gives the same batch."""

    @property
    def source(self) -> str:
        """Where the text comes from."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when any token of the text changes."""
        ...

    @property
    def n_tokens(self) -> int:
        """Number of tokens in all batches."""
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
    """Windows of a corpus, ``rows`` at a time; the corpus defines which are held out."""

    model: LanguageModel
    corpus: Corpus
    rows: int

    @property
    def source(self) -> str:
        """Source of the corpus."""
        return self.corpus.source

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the corpus."""
        return self.corpus.fingerprint

    @property
    def n_tokens(self) -> int:
        """All windows, held out or not."""
        return self.corpus.n_tokens

    def held_out_rows(self) -> Bool[Tensor, " row"]:
        """Held-out windows of the corpus."""
        return self.corpus.held_out_windows()

    def __len__(self) -> int:
        return math.ceil(len(self.corpus.windows) / self.rows)

    def read(self, index: int) -> Batch:
        """The windows from ``index * rows`` on."""
        start = index * self.rows
        some = slice(start, start + self.rows)
        ids = self.corpus.windows[some].to(self.model.device)
        positions = kept_positions(self.model, ids)
        captured = capture(self.model, ids, positions=positions)
        return Batch(ids, positions, captured.z, captured.final, self.held_out_rows()[some])


@dataclass(frozen=True)
class SelfBatches:
    """Text sampled from the model; its activations are captured during sampling."""

    model: LanguageModel
    n_rows: int
    rows: int
    window: int
    seed: int

    @property
    def source(self) -> str:
        """Its name on the command line."""
        return "self"

    @property
    def fingerprint(self) -> str:
        """Hash of what determines the text: the model and the sampling settings."""
        settings = f"{self.model.fingerprint} {self.n_rows} {self.rows} {self.window} {self.seed}"
        return fingerprint_text([settings.encode()])

    @property
    def n_tokens(self) -> int:
        """All rows, held out or not."""
        return self.n_rows * self.window

    def held_out_rows(self) -> Bool[Tensor, " row"]:
        """Every sixteenth row (rows are independent), at least one."""
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
        positions = kept_positions(self.model, sampled.ids)
        z = {layer: at_positions(each, positions) for layer, each in sampled.z.items()}
        return Batch(sampled.ids, positions, z, at_positions(sampled.final, positions), held_out)


def row_hashes(ids: Int[Tensor, "batch pos"]) -> Int[Tensor, " batch"]:
    """A hash of the ids of each row, from 0 to 2^62.

    >>> row_hashes(torch.tensor([[5, 7], [5, 7], [7, 5]])).unique().numel()
    2
    """
    rows = np.ascontiguousarray(ids.cpu().numpy(), "<i8")
    digests = [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows]
    numbers = np.frombuffer(b"".join(digests), "<u8") >> np.uint64(2)
    return torch.from_numpy(numbers.astype(np.int64))


def kept_positions(
    model: LanguageModel, ids: Int[Tensor, "batch pos"]
) -> Int[Tensor, "batch kept_pos"]:
    """Every other position of each row after the prefix; its hash decides even or odd."""
    first, length = model.encoding.n_skipped, ids.shape[1]
    offset = row_hashes(ids)[:, None] % POSITION_EVERY
    column = torch.arange(max(1, (length - first) // POSITION_EVERY))
    positions = first + POSITION_EVERY * column + offset
    return positions.clamp_max(length - 1).to(ids.device)


def priorities(batch: Batch) -> Int[Tensor, "batch kept_pos"]:
    """A pseudo-random number for each kept position, a function of its row and position only.

    The positions with the smallest numbers are a uniform sample of a text (bottom-k sampling). The
    sample of two texts together is contained in their two samples (Cohen and Kaplan, 2007,
    https://doi.org/10.1145/1281100.1281133).
    """
    row = row_hashes(batch.ids).numpy().astype(np.uint64)[:, None]
    place = batch.positions.cpu().numpy().astype(np.uint64)
    # The output function of SplitMix64 (Steele et al., 2014); its products wrap around.
    mixed = row + (place + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return torch.from_numpy((mixed >> np.uint64(1)).astype(np.int64))


def windows_of_step(n_windows: int, step: int, *, rows: int, seed: int) -> Tensor:
    """The windows of a step: an epoch reads each window once, in random order."""
    rows = min(rows, n_windows)
    turn, place = divmod(step - 1, n_windows // rows)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + turn)
    order = torch.randperm(n_windows, generator=generator)
    return order[place * rows : (place + 1) * rows]
