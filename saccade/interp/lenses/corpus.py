"""Text to fit and score lenses with: files, folders or a dataset, as windows of ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.errors import CorpusError, UsageError
from saccade.interp.lenses.documents import documents, resolve
from saccade.store.fingerprint import fingerprint_text

# Text tokenized at once: enough to use all threads of the tokenizer, and little enough to read a
# file of any size in constant memory (apart from the ids).
_PIECE = 1 << 15  # characters
_PIECES = 16
# One window in 16 is held out of the fit: the ridge and the bias of each token are chosen on it.
HELD_OUT_EVERY = 16
# A piece is tokenized with this many characters of context on each side, so that the tokens at its
# ends are those of the whole text; no tokenizer looks further than a token.
_CONTEXT = 64


@dataclass(frozen=True)
class Corpus:
    """Tokenized text in windows of equal length, each with the prefix that a prompt has."""

    source: str
    fingerprint: str
    """Of the ids in the windows."""
    windows: Int[Tensor, "window pos"]
    n_bytes: int
    """UTF-8 bytes of the text in the windows."""
    window_bytes: Int[Tensor, " window"] | None = None
    """The same per window; without it, a part of the corpus gets its share of ``n_bytes``."""
    n_prefix: int = 0
    """Number of tokens at the start of each window that the tokenizer adds (BOS)."""
    held_out: Bool[Tensor, " window"] | None = None
    """True = a window for model selection, not for fitting. None: the last sixteenth."""

    def held_out_windows(self) -> Bool[Tensor, " window"]:
        """True = held out, for every window."""
        return _last_windows(len(self.windows)) if self.held_out is None else self.held_out

    @property
    def n_tokens(self) -> int:
        """Number of tokens of text in the windows."""
        return self.windows[:, self.n_prefix :].numel()


def _last_windows(n_windows: int) -> Bool[Tensor, " window"]:
    """The held-out windows of a source: the last sixteenth, at least one.

    They are contiguous at the end because windows of one document are too similar: a ridge chosen
    on neighbours of the fitted windows is too weak.
    """
    n_held_out = max(1, n_windows // HELD_OUT_EVERY)
    return torch.arange(n_windows) >= n_windows - n_held_out


def read_corpus(
    source: str | Path | Sequence[str | Path],
    model: Any,
    *,
    window: int = 256,
    max_tokens: int | None = None,
) -> Corpus:
    """Read and tokenize text up to its end, or up to ``max_tokens``.

    A text file is one document, and so is each row of a JSONL file or dataset. The tokenizer's
    end-of-text token, if it has one, separates documents. Each window begins with the tokens that
    the tokenizer puts in front of a prompt (BOS), as the model expects.

    Each source is split into windows separately, its last incomplete window is dropped, and the end
    of each is held out: lenses fitted on each source separately merge into those fitted on all.

    Bytes are counted from the tokenizer's offsets: a token's bytes are those of the text from the
    end of the token before it to its own end (separators have none). The count is exact, but
    a character split between two windows counts in the first. For a tokenizer without offsets (not
    a "fast" one), the bytes of a piece of text are divided evenly among its tokens.

    Args:
        source: a text or JSONL file (also .gz), a folder of them, several of these, or a dataset
            as ``name``, ``name:config`` or ``name:config:split``. An existing path has priority.
        model: a `LanguageModel`; its ``tokenizer``, ``encoding`` and ``max_positions`` are used.
        window: tokens per forward pass of the model, including the prefix.
        max_tokens: limit on the tokens of text, without prefixes.
    """
    _check_sizes(model, window, max_tokens)
    sources = [source] if isinstance(source, str | Path) else list(source)
    name = ", ".join(str(each) for each in sources)
    # Resolve all sources before reading the first, which can take a while.
    found = [(str(each), resolve(each)) for each in sources]
    parts: list[Corpus] = []
    n_found = 0
    for each, files in found:
        room = None if max_tokens is None else max_tokens - n_found
        if room is not None and room < window - len(model.encoding.prefix):
            break
        parts.append(_read_source(each, files, model, window=window, max_tokens=room))
        n_found += parts[-1].n_tokens
    if not parts:
        raise CorpusError("the corpus contains no text", hint="give a file that contains text")
    return _joined(name, parts)


def _read_source(
    name: str, files: list[str | Path], model: Any, *, window: int, max_tokens: int | None
) -> Corpus:
    """The windows of one source."""
    texts = chain.from_iterable(map(documents, files))
    pieces = chain.from_iterable(map(_pieces, texts))
    ids, sizes = _tokenize(pieces, model.tokenizer, max_tokens)
    prefix = model.encoding.prefix
    length = window - len(prefix)  # of the text in a window
    n_windows = len(ids) // length
    if len(ids) == 0:
        raise CorpusError(f"{name} contains no text", hint="give a file that contains text")
    if n_windows == 0:
        raise CorpusError(
            f"{name} is shorter than one window: {len(ids)} tokens found, {length} needed",
            hint=f"give more text, put short files into one folder, or use a window of at most "
            f"{len(ids) + len(prefix)} tokens",
        )
    kept = slice(0, n_windows * length)
    text = torch.from_numpy(ids[kept].astype(np.int64)).view(n_windows, length)
    windows = model.encoding.with_prefix(text)
    by_window = torch.from_numpy(sizes[kept].reshape(n_windows, length).sum(1, dtype=np.int64))
    return Corpus(
        source=name,
        fingerprint=_fingerprint(windows),
        windows=windows,
        n_bytes=int(by_window.sum()),
        window_bytes=by_window,
        n_prefix=len(prefix),
    )


def _joined(name: str, parts: list[Corpus]) -> Corpus:
    """The windows of several sources, concatenated."""
    windows = torch.cat([part.windows for part in parts])
    by_window = torch.cat([part.window_bytes for part in parts if part.window_bytes is not None])
    return Corpus(
        source=name,
        fingerprint=_fingerprint(windows),
        windows=windows,
        n_bytes=int(by_window.sum()),
        window_bytes=by_window,
        n_prefix=parts[0].n_prefix,
        held_out=torch.cat([part.held_out_windows() for part in parts]),
    )


def split(corpus: Corpus, *, held_out: float | int) -> tuple[Corpus, Corpus]:
    """The first windows to fit on and the last ones to score with, at least one each.

    Args:
        held_out: number of windows to hold out, or their share (a float below 1).

    >>> windows = torch.arange(20).view(5, 4)
    >>> train, test = split(Corpus("numbers", "", windows, n_bytes=50), held_out=0.2)
    >>> train.n_tokens, test.windows
    (16, tensor([[16, 17, 18, 19]]))
    """
    n = len(corpus.windows)
    if n < 2:
        raise CorpusError(
            f"{corpus.source} has only one window of {corpus.n_tokens} tokens: "
            "no window can be held out",
            hint="give more text or a shorter window",
        )
    if not (0 < held_out < 1 if isinstance(held_out, float) else 1 <= held_out < n):
        raise UsageError(
            f"cannot hold out {held_out} of {n} windows",
            hint=f"give a share between 0 and 1, or a number of windows from 1 to {n - 1}",
        )
    count = round(held_out * n) if isinstance(held_out, float) else held_out
    edge = n - min(max(count, 1), n - 1)
    return _part(corpus, slice(0, edge)), _part(corpus, slice(edge, n))


def shard(corpus: Corpus, rank: int, world_size: int) -> Corpus:
    """Every ``world_size``-th window from ``rank`` on: the shard of this process, maybe empty."""
    assert 0 <= rank < world_size, f"rank {rank} of {world_size}"
    return _part(corpus, slice(rank, None, world_size))


def _part(corpus: Corpus, which: slice) -> Corpus:
    windows = corpus.windows[which]
    by_window = None if corpus.window_bytes is None else corpus.window_bytes[which]
    share = corpus.n_bytes * len(windows) // max(len(corpus.windows), 1)
    return replace(
        corpus,
        fingerprint=_fingerprint(windows),
        windows=windows,
        n_bytes=share if by_window is None else int(by_window.sum()),
        window_bytes=by_window,
        held_out=_some_held_out(corpus.held_out_windows()[which]),
    )


def _some_held_out(held_out: Bool[Tensor, " window"]) -> Bool[Tensor, " window"]:
    """The same windows if both parts are non-empty; otherwise the last sixteenth."""
    is_sound = bool(held_out.any()) and not bool(held_out.all())
    return held_out if is_sound else _last_windows(len(held_out))


def _fingerprint(windows: Tensor) -> str:
    return fingerprint_text(row.numpy().astype("<i4").tobytes() for row in windows.split(4096))


def _check_sizes(model: Any, window: int, max_tokens: int | None) -> None:
    if window < 1:
        raise UsageError(f"window must be at least 1, got {window}", hint="256 is usual")
    n_prefix = len(model.encoding.prefix)
    if window <= n_prefix:
        raise UsageError(
            f"a window of {window} tokens has no room for text: the tokenizer adds a prefix of "
            f"{n_prefix}",
            hint="256 is usual",
        )
    if model.max_positions is not None and window > model.max_positions:
        raise UsageError(
            f"a window of {window} tokens is longer than the model's context of "
            f"{model.max_positions}",
            hint=f"use a window of at most {model.max_positions}",
        )
    if max_tokens is not None and max_tokens < window - n_prefix:
        raise UsageError(
            f"max_tokens {max_tokens} is less than one window of {window} tokens",
            hint=f"allow at least {window} tokens, or use a shorter window",
        )


class _Piece(NamedTuple):
    text: str
    """The piece, with some text before and after it as context."""
    start: int
    stop: int
    is_first: bool
    """True for the first piece of a document."""


def _pieces(document: Iterable[str]) -> Iterator[_Piece]:
    """Split a document at line starts; each piece includes some context on both sides."""
    text, start, is_first = "", 0, True
    for block in document:
        text += block
        while len(text) > start + _PIECE + _CONTEXT:
            stop = _line_start(text, start, start + _PIECE)
            yield _Piece(text[: stop + _CONTEXT], start, stop, is_first)
            text, start, is_first = text[max(0, stop - _CONTEXT) :], min(stop, _CONTEXT), False
    if len(text) > start:
        yield _Piece(text, start, len(text), is_first)


def _line_start(text: str, start: int, stop: int) -> int:
    """The last index up to ``stop`` where a line starts with a token, else where a token ends."""
    at = text.rfind("\n", start, stop)
    while at >= 0:
        # Tokenizers merge a line break and the indent after it into one token.
        if not text[at + 1].isspace():
            return at + 1
        at = text.rfind("\n", start, at)
    at = text.rfind(" ", start, stop)
    return at if at > start else stop


def _tokenize(
    pieces: Iterator[_Piece], tokenizer: Any, max_tokens: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all pieces, and the number of bytes of text of each id."""
    ids, sizes, found = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)], 0
    while (max_tokens is None or found < max_tokens) and (batch := _take(pieces)):
        for piece, (new, size) in zip(batch, _encode(batch, tokenizer), strict=True):
            is_next = piece.is_first and found > 0 and len(new) > 0
            between = (
                [tokenizer.eos_token_id] if is_next and tokenizer.eos_token_id is not None else []
            )
            ids += [np.array(between, np.int32), new]
            sizes += [np.zeros(len(between), np.int32), size]
            found += len(between) + len(new)
    return np.concatenate(ids)[:max_tokens], np.concatenate(sizes)[:max_tokens]


def _take(pieces: Iterator[_Piece]) -> list[_Piece]:
    """Pieces to tokenize at once: about the same amount of text for long and short pieces."""
    batch, room = [], _PIECE * _PIECES
    while room > 0 and (piece := next(pieces, None)) is not None:
        batch.append(piece)
        room -= len(piece.text) + 256  # a fixed cost per piece
    return batch


def _encode(batch: list[_Piece], tokenizer: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    is_fast = tokenizer.is_fast
    texts = [piece.text if is_fast else piece.text[piece.start : piece.stop] for piece in batch]
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_attention_mask=False,
        return_offsets_mapping=is_fast,
        verbose=False,  # no warning that a text is longer than the context
    )
    for row, piece in enumerate(batch):
        ids = np.array(encoded["input_ids"][row], np.int32)
        if is_fast:
            offsets = np.array(encoded["offset_mapping"][row], np.int64).reshape(-1, 2)
            inside = (offsets[:, 0] >= piece.start) & (offsets[:, 0] < piece.stop)
            yield ids[inside], _bytes_up_to(piece, offsets[inside, 1])
        else:
            n_bytes = len(texts[row].encode())
            yield ids, np.diff(np.arange(len(ids) + 1) * n_bytes // max(len(ids), 1))


def _bytes_up_to(piece: _Piece, ends: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The number of bytes of each token, given the character index at which it ends."""
    if len(ends) == 0:
        return ends
    text = piece.text[piece.start : piece.stop]
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    bytes_before = np.concatenate([[0], np.cumsum(widths)])
    ends = np.maximum.accumulate(np.clip(ends - piece.start, 0, len(text)))
    ends[-1] = len(text)  # text that a normalizer dropped at the end still counts
    return np.diff(bytes_before[ends], prepend=0)
