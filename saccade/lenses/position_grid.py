"""What each layer says at each position: of the residual stream, or of one head of each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.lenses.head_reading import plain
from saccade.lenses.logit_lens import LogitLens
from saccade.lenses.one_head import said_by_head
from saccade.lenses.sites import held_at
from saccade.lenses.top_words import largest

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses
    from saccade.lenses.text_run import TextRun

UNEMBEDDING = "unembedding"


@dataclass(frozen=True)
class Span:
    """Positions side by side."""

    first: int
    count: int

    def checked(self, run: TextRun) -> list[int]:
        """The positions of a text, at least one."""
        start = run.position(self.first)
        return list(range(start, min(start + self.count, len(run.tokens))))


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is read at each layer: the stream, or a head of this number, and with which lenses."""

    name: str
    """Of the lenses."""
    lenses: Lenses | None
    """None for the plain unembedding of the residual stream."""
    head: int | None = None

    def layers(self, run: TextRun) -> list[int]:
        """The layers that have such a head and a lens for it."""
        if self.lenses is None:
            return [at.index for at in run.model.layers]
        is_stream = self.head is None
        fitting = [
            layer
            for layer, lens in self.lenses.by_layer.items()
            if (lens.site == "residual") == is_stream
            and (is_stream or 0 <= (self.head or 0) < run.model.layer(layer).n_heads)
        ]
        if not fitting:
            what = "the residual stream" if is_stream else f"head {self.head}"
            raise LensError(
                f"the lenses {self.name} do not read {what}",
                hint="choose other lenses, or another head",
            )
        return fitting

    def logits(self, run: TextRun, layer: int, at: list[int]) -> Float[Tensor, "pos d_vocab"]:
        """What is said at some positions of one layer."""
        model = run.model
        lens = LogitLens.start(model, layer) if self.lenses is None else self.lenses.by_layer[layer]
        held = held_at(model, run.captured, layer, lens.site, positions=at)
        return said_by_head(lens, held, self.head or 0).float()


@torch.inference_mode()
def position_grid(run: TextRun, site: Site, span: Span, *, top: int = 10) -> dict[str, Any]:
    """The likeliest words of each layer at each position, ready for JSON.

    ``ids[layer][position]`` and ``values`` (probabilities) have the ``top`` words of a cell;
    ``words`` says each id once, since neighbours mostly share them. ``final`` is the model's own
    output.
    """
    at, layers = span.checked(run), site.layers(run)
    cells = [_cells(logits, top) for logits in _rows(run, site, layers, at)]
    *grid, final = cells
    every = sorted({id_ for cell in cells for row in cell.ids for id_ in row})
    return {
        "site": "residual" if site.head is None else "head",
        "head": site.head,
        "lens": site.name,
        "tokens": run.tokens,
        "first": at[0],
        "layers": layers,
        "words": dict(zip(map(str, every), run.model.words(every), strict=True)),
        "ids": [cell.ids for cell in grid],
        "values": [cell.values for cell in grid],
        "entropy": [cell.entropy for cell in grid],
        "final": {"ids": final.ids, "values": final.values, "entropy": final.entropy},
    }


@torch.inference_mode()
def word_ranks(run: TextRun, site: Site, span: Span, words: Sequence[int]) -> dict[str, Any]:
    """Where words stand among all words, by layer and position; rank 0 is the likeliest."""
    at, layers = span.checked(run), site.layers(run)
    if unknown := [word for word in words if not 0 <= word < run.model.d_vocab]:
        raise UsageError(
            f"no word {unknown[0]}: the model has words 0-{run.model.d_vocab - 1}",
            hint="give a word as text",
        )
    wanted = torch.tensor(list(words))
    found = [_standing(logits, wanted) for logits in _rows(run, site, layers, at)]
    *grid, final = found
    return {
        "site": "residual" if site.head is None else "head",
        "head": site.head,
        "lens": site.name,
        "first": at[0],
        "layers": layers,
        "words": [
            {
                "id": word,
                "text": text,
                "ranks": [each.ranks[place] for each in grid],
                "values": [each.values[place] for each in grid],
                "final": {"ranks": final.ranks[place], "values": final.values[place]},
            }
            for place, (word, text) in enumerate(zip(words, run.model.words(words), strict=True))
        ],
    }


def _rows(
    run: TextRun, site: Site, layers: Sequence[int], at: list[int]
) -> Iterator[Float[Tensor, "pos d_vocab"]]:
    """The logits of each layer, and at last the model's own."""
    for layer in layers:
        yield site.logits(run, layer, at)
    yield run.model.unembedding.logits(run.captured.final[0, at]).float()


class _Cells(NamedTuple):
    ids: list[list[int]]
    values: list[list[float]]
    entropy: list[float]


def _cells(logits: Float[Tensor, "pos d_vocab"], top: int) -> _Cells:
    best = largest(logits, min(top, logits.shape[1]))
    log_p = logits.log_softmax(-1)
    chances = log_p.gather(1, best.ids).exp()
    entropy = -(log_p.exp() * log_p).sum(-1)
    values = [plain(tuple(row)) for row in chances.tolist()]
    return _Cells(best.ids.tolist(), values, plain(tuple(entropy.tolist())))


class _Standing(NamedTuple):
    ranks: list[list[int]]
    """Word -> position."""
    values: list[list[float]]


def _standing(logits: Float[Tensor, "pos d_vocab"], words: Tensor) -> _Standing:
    words = words.to(logits.device)
    ranks = [(logits > logits[:, word, None]).sum(-1).tolist() for word in words]
    chances = logits.softmax(-1)[:, words]
    values = [plain(tuple(row)) for row in chances.T.tolist()]
    return _Standing(ranks, values)
