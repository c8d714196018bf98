"""What an atlas records at each sampled position: the effect of every head, and where it looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from saccade.interp.atlas.atlas_text import Chunk
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.effects import compare, correlation
from saccade.interp.effects.joined_pass import CopyRun
from saccade.interp.effects.parts import HeadsValue
from saccade.interp.effects.target import LOGIT_ROWS
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.top_tokens import lens_prediction

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses

PROMOTED, SUPPRESSED, LOOKED, PREDICTED = 5, 3, 4, 4  # kept for each head at each position
LENS_EVERY = 4  # lenses are read at one of so many of the positions of effects


@dataclass(frozen=True, kw_only=True)
class Records:
    """Everything that was recorded, position by position, for all heads of the atlas.

    Numbers are rounded to half precision, except the KL. What every figure of an atlas is made of:
    two atlases merge by putting their records together.
    """

    window: Int[Tensor, " n"]
    position: Int[Tensor, " n"]
    kl: Float[Tensor, "n head"]
    """KL(with || without) of the next-token distribution, in nats."""
    on_next: Float[Tensor, "n head"]
    """How far the log-probability of the text's own next token falls without the head, in nats."""
    promoted: Int[Tensor, "n head 5"]
    """Tokens that the head promotes, those that matter most to the prediction first."""
    promoted_by: Float[Tensor, "n head 5"]
    """The change of their log-probability, in nats; 0 or less where fewer are promoted."""
    suppressed: Int[Tensor, "n head 3"]
    suppressed_by: Float[Tensor, "n head 3"]
    looked: Int[Tensor, "n head 4"]
    """The positions the head attends to most."""
    looked_by: Float[Tensor, "n head 4"]
    lens_at: Int[Tensor, " m"]
    """The rows (of the other tensors) at which lenses were read."""
    predicted: Int[Tensor, "m head 4"]
    """The tokens that the lens adds most to its baseline's prediction."""
    predicted_by: Float[Tensor, "m head 4"]
    """Their shares of the KL from the baseline, in nats."""
    lens_kl: Float[Tensor, "m head"]
    """KL from the baseline lens, in nats."""
    agreement: Float[Tensor, "m head"]
    """The correlation of the change that the lens predicts with the exact effect."""

    def __len__(self) -> int:
        return len(self.window)

    def tensors(self) -> dict[str, Tensor]:
        """By name, to store."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def of(self, rows: Int[Tensor, " n"]) -> Records:
        """Some rows, in this order; those of the lenses in the same order."""
        order = {int(row): at for at, row in enumerate(rows.tolist())}
        places = sorted(
            (order[row], place) for place, row in enumerate(self.lens_at.tolist()) if row in order
        )
        lens_at = torch.tensor([row for row, _ in places], dtype=torch.int32)
        kept = torch.tensor([place for _, place in places], dtype=torch.long)
        found = {
            name: value[kept] if name in _OF_LENS else value[rows]
            for name, value in self.tensors().items()
            if name != "lens_at"
        }
        return Records(lens_at=lens_at, **found)


_OF_LENS = frozenset({"predicted", "predicted_by", "lens_kl", "agreement"})


def joined(parts: Sequence[Records]) -> Records:
    """Several records after each other."""
    starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
    lens_at = [part.lens_at + int(at) for part, at in zip(parts, starts[:-1], strict=True)]
    rest = [name for name in parts[0].tensors() if name != "lens_at"]
    found = {name: torch.cat([getattr(part, name) for part in parts]) for name in rest}
    return Records(lens_at=torch.cat(lens_at).to(torch.int32), **found)


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Measures the effects of chosen heads in windows of text."""

    model: LanguageModel
    sites: Sequence[tuple[int, int]]
    """(layer, head), in order of depth."""
    replacement: Replacement
    lenses: Lenses | None = None

    def record(self, chunk: Chunk, cache: DynamicCache | None) -> Iterator[Records]:
        """The records of one chunk, one position after another.

        Args:
            cache: keys and values of the whole windows; without it the text before each position
                runs again.
        """
        changes = [
            HeadsValue(layer, (head,), self.replacement.heads[layer][head : head + 1])
            for layer, head in self.sites
        ]
        is_text = self.model.is_text(chunk.windows)
        for turn, position in enumerate(chunk.positions):
            # The text up to here, and a next token that is text as well.
            rows = (is_text[:, position] & is_text[:, position + 1]).nonzero()[:, 0]
            if not len(rows):
                continue
            before = None if cache is None else _first(cache, rows, position)
            run = run_copies(
                self.model,
                chunk.windows[rows, : position + 1],
                changes,
                attention=True,
                cache=before,
            )
            reads_lens = self.lenses is not None and turn % LENS_EVERY == 0
            for at, row in enumerate(rows.tolist()):
                following = int(chunk.windows[row, position + 1])
                yield self._one(run, at, (chunk.start + row, position), following, lens=reads_lens)

    def _one(
        self, run: CopyRun, at: int, place: tuple[int, int], following: int, *, lens: bool
    ) -> Records:
        model, n = self.model, len(self.sites)
        top = max(PROMOTED, SUPPRESSED)
        with fast_products():
            plain = model.unembedding.logits(run.captured.final[at, 0]).float()
        p = plain.softmax(-1)
        kl, on_next = torch.empty(n), torch.empty(n)
        agreement = torch.zeros(n)
        ids = torch.empty(2, n, top, dtype=torch.int32)
        values = torch.empty(2, n, top)
        for start, stop in self._layer_spans():
            with fast_products():
                changed = model.unembedding.logits(run.states[at, start:stop]).float()
            moved = changed.sub_(plain)
            found = compare(moved, p, top)
            kl[start:stop] = found.kl
            on_next[start:stop] = found.shift - moved[:, following]
            for sign, order in enumerate((found.promotes, found.suppresses)):
                ids[sign, start:stop] = order.ids.to(torch.int32)
                values[sign, start:stop] = order.values
            if lens:
                agreement[start:stop] = self._agreement(run, at, (start, stop), moved, p)
        looked, weights = self._looked(run, at)
        read = self._read_lenses(run, at) if lens else None
        return Records(
            window=torch.tensor([place[0]], dtype=torch.int32),
            position=torch.tensor([place[1]], dtype=torch.int32),
            kl=kl[None],
            on_next=on_next[None].half(),
            promoted=ids[None, 0, :, :PROMOTED],
            promoted_by=values[None, 0, :, :PROMOTED].half(),
            suppressed=ids[None, 1, :, :SUPPRESSED],
            suppressed_by=values[None, 1, :, :SUPPRESSED].half(),
            looked=looked[None],
            looked_by=weights[None],
            lens_at=torch.zeros(int(lens), dtype=torch.int32),
            predicted=_rows(read, 0, (n, PREDICTED), torch.int32),
            predicted_by=_rows(read, 1, (n, PREDICTED), torch.half),
            lens_kl=_rows(read, 2, (n,), torch.half),
            agreement=agreement[None].half() if lens else torch.empty(0, n, dtype=torch.half),
        )

    def _layer_spans(self) -> list[tuple[int, int]]:
        """Ranges of heads, whole layers, whose logits are computed together."""
        n_of: dict[int, int] = {}
        for layer, _ in self.sites:
            n_of[layer] = n_of.get(layer, 0) + 1
        spans = [(0, 0)]
        for n in n_of.values():
            start, stop = spans[-1]
            if stop - start and stop - start + n > LOGIT_ROWS:
                spans.append((stop, stop + n))
            else:
                spans[-1] = (start, stop + n)
        return spans

    def _heads(self, layer: int) -> list[int]:
        return [head for each, head in self.sites if each == layer]

    def _layers(self, start: int = 0, stop: int | None = None) -> list[int]:
        return list(dict.fromkeys(layer for layer, _ in self.sites[start:stop]))

    def _looked(self, run: CopyRun, at: int) -> tuple[Tensor, Tensor]:
        """The positions with the largest attention weights of every head."""
        rows = [
            run.captured.attention[layer][at, self._heads(layer), 0].float()
            for layer in self._layers()
        ]
        weights = torch.cat([row.cpu() for row in rows])  # [head, pos]
        best = weights.topk(min(LOOKED, weights.shape[-1]), dim=-1)
        positions = torch.zeros(len(weights), LOOKED, dtype=torch.int32)
        shares = torch.zeros(len(weights), LOOKED, dtype=torch.half)
        positions[:, : best.indices.shape[1]] = best.indices.to(torch.int32)
        shares[:, : best.values.shape[1]] = best.values.half()
        return positions, shares

    def _agreement(
        self, run: CopyRun, at: int, span: tuple[int, int], moved: Tensor, p: Tensor
    ) -> Float[Tensor, " head"]:
        """Of the heads with a lens; 0 for the others."""
        assert self.lenses is not None, "read only with lenses"
        found = []
        for layer in self._layers(*span):
            heads, lens = self._heads(layer), self.lenses.by_layer.get(layer)
            start = sum(len(part) for part in found)
            if lens is None or lens.site != "head":
                found.append(torch.zeros(len(heads)))
                continue
            z = run.captured.z[layer][at, 0]
            mean = self.replacement.heads[layer].to(z)
            with fast_products():
                logits = lens(torch.stack([z, mean]))[:, heads].float()
            change = logits[1] - logits[0]
            found.append(correlation(change, moved[start : start + len(heads)], p).cpu())
        return torch.cat(found)

    def _read_lenses(self, run: CopyRun, at: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens that each lens adds, their shares, and its KL from the baseline."""
        assert self.lenses is not None, "read only with lenses"
        n = len(self.sites)
        ids = torch.zeros(n, PREDICTED, dtype=torch.int32)
        shares, kl = torch.zeros(n, PREDICTED), torch.zeros(n)
        start = 0
        for layer in self._layers():
            heads, lens = self._heads(layer), self.lenses.by_layer.get(layer)
            rows = slice(start, start + len(heads))
            start += len(heads)
            if lens is None or lens.site != "head":
                continue
            with fast_products():
                logits = lens(run.captured.z[layer][at : at + 1, 0])[0, heads].float()
            found = lens_prediction(logits, self.lenses.baseline, top=PREDICTED)
            ids[rows], shares[rows] = found.adds.ids.to(torch.int32), found.adds.values
            kl[rows] = found.kl_from_baseline
        return ids, shares, kl


def _rows(
    read: tuple[Tensor, ...] | None, which: int, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    return torch.empty(0, *shape, dtype=dtype) if read is None else read[which][None].to(dtype)


def _first(cache: DynamicCache, rows: Int[Tensor, " row"], n_tokens: int) -> DynamicCache:
    """The keys and values of the first tokens of some rows, as a cache of their own."""
    found = DynamicCache()
    for number, layer in enumerate(cache.layers):
        assert isinstance(layer, DynamicLayer), "a model with copies has attention in every layer"
        keys, values = layer.keys, layer.values
        assert keys is not None and values is not None, "the windows have run"
        found.update(keys[rows, :, :n_tokens], values[rows, :, :n_tokens], number)
    return found
