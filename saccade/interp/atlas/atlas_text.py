"""The text of an atlas: windows of its sources, and the positions whose effects are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.errors import CorpusError, UsageError
from saccade.interp.atlas.atlas_config import AtlasConfig
from saccade.interp.lenses.batches import row_hashes
from saccade.interp.lenses.corpus import read_corpus
from saccade.interp.lenses.self_text import sample_batches
from saccade.store.fingerprint import fingerprint_text

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

SELF = "self"
ROWS = 4  # windows that run together: effects at one position of each share a pass


class AtlasText(NamedTuple):
    """Windows of all sources, those of one source after each other."""

    windows: Int[Tensor, "window pos"]
    source: Int[Tensor, " window"]
    """The number of each window's source."""
    sources: tuple[str, ...]
    fingerprints: tuple[str, ...]
    """Of the tokens of each source."""

    @property
    def n_tokens(self) -> int:
        """Tokens in all windows."""
        return self.windows.numel()


class Chunk(NamedTuple):
    """Windows that run together, and the positions in them whose effects are measured."""

    start: int
    """The first window's number."""
    windows: Int[Tensor, "row pos"]
    positions: tuple[int, ...]


def read_text(
    model: LanguageModel, corpus: str | Path | Sequence[str | Path], config: AtlasConfig
) -> AtlasText:
    """The text of an atlas: files, folders or a dataset, or "self", text that the model writes.

    Each source gives windows of its own; several sources share the tokens evenly, so that a long
    one does not crowd out a short one.
    """
    if corpus == SELF:
        return _own_text(model, config)
    names = [corpus] if isinstance(corpus, str | Path) else list(corpus)
    share = config.tokens // len(names)
    if share < config.window:
        raise UsageError(
            f"{config.tokens} tokens are less than one window of {config.window} tokens for each "
            f"text, of which there are {len(names)}",
            hint=f"give at least --tokens {len(names) * config.window}",
        )
    windows, source, fingerprints = [], [], []
    for number, name in enumerate(names):
        part = read_corpus(name, model, window=config.window, max_tokens=share)
        windows.append(part.windows)
        source.append(torch.full((len(part.windows),), number))
        fingerprints.append(part.fingerprint)
    if len(set(fingerprints)) < len(names):
        raise CorpusError(
            f"two of the sources have the same tokens: {', '.join(map(str, names))}",
            hint="name each text once",
        )
    texts = tuple(str(name) for name in names)
    return AtlasText(torch.cat(windows), torch.cat(source), texts, tuple(fingerprints))


def _own_text(model: LanguageModel, config: AtlasConfig) -> AtlasText:
    window = min(config.window, model.max_positions or config.window)
    batches = sample_batches(model, n_tokens=config.tokens, window=window, seed=config.seed)
    windows = torch.cat([batch.ids.cpu() for batch in batches])
    fingerprint = fingerprint_text([windows.numpy().astype("<i4").tobytes()])
    source = torch.zeros(len(windows), dtype=torch.long)
    return AtlasText(windows, source, (SELF,), (fingerprint,))


def chunks_of(model: LanguageModel, text: AtlasText, config: AtlasConfig) -> Iterator[Chunk]:
    """The windows, a few at a time, each with its positions.

    The positions of a chunk depend on its own tokens and the seed alone. The atlas of two texts is
    therefore what the atlases of each, merged, give.
    """
    for number in range(len(text.sources)):
        mine = (text.source == number).nonzero()[:, 0]
        for some in mine.split(ROWS):
            windows = text.windows[some]
            yield Chunk(int(some[0]), windows, _positions(model, windows, config))


def _positions(
    model: LanguageModel, windows: Int[Tensor, "row pos"], config: AtlasConfig
) -> tuple[int, ...]:
    """Some positions, not the first, whose next token is in the window too."""
    first, last = model.encoding.n_skipped, windows.shape[1] - 1
    wanted = min(max(1, windows.shape[1] // config.every), last - first)
    seed = (int(row_hashes(windows[:1])[0]) + config.seed) % 2**62
    generator = torch.Generator().manual_seed(seed)
    drawn = first + torch.randperm(last - first, generator=generator)[:wanted]
    return tuple(sorted(drawn.tolist()))
