"""What an atlas records at each sampled position: the effect of every head, and where it looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from saccade.interp.atlas.atlas_text import Chunk
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.effects import compare, correlation
from saccade.interp.effects.joined_pass import CopyRun
from saccade.interp.effects.parts import HeadsValue
from saccade.interp.effects.target import LOGIT_ROWS
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.top_tokens import LensPrediction, lens_prediction

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
            places = torch.stack([chunk.start + rows, torch.full_like(rows, position)])
            following = chunk.windows[rows, position + 1].tolist()
            yield self._records(
                run, places, following, lenses=None if turn % LENS_EVERY else self.lenses
            )

    def _records(
        self,
        run: CopyRun,
        places: Int[Tensor, "2 row"],
        following: Sequence[int],
        *,
        lenses: Lenses | None,
    ) -> Records:
        """The records of one position of each row, its window and position given."""
        n_rows, n, top = len(following), len(self.sites), max(PROMOTED, SUPPRESSED)
        with fast_products():
            plain = self.model.unembedding.logits(run.captured.final[:, 0]).float()
        p = plain.softmax(-1)  # [row, d_vocab]
        kl, on_next = torch.empty(n_rows, n), torch.empty(n_rows, n)
        ids = torch.empty(2, n_rows, n, top, dtype=torch.int32)
        values = torch.empty(2, n_rows, n, top)
        known = _Knowledge.empty(n_rows if lenses is not None else 0, n)
        for start, stop in self._layer_spans():
            span = slice(start, stop)
            logits = None if lenses is None else self._lens_logits(run, lenses, (start, stop))
            for row in range(n_rows):
                with fast_products():
                    changed = self.model.unembedding.logits(run.states[row, span]).float()
                moved = changed.sub_(plain[row])
                found = compare(moved, p[row], top)
                kl[row, span] = found.kl
                on_next[row, span] = found.shift - moved[:, following[row]]
                for sign, order in enumerate((found.promotes, found.suppresses)):
                    ids[sign, row, span] = order.ids.to(torch.int32)
                    values[sign, row, span] = order.values
                if logits is not None and lenses is not None:
                    agreement = correlation(logits[row] - logits[-1], moved, p[row])
                    said = lens_prediction(logits[row], lenses.baseline, top=PREDICTED)
                    known.put(row, span, said, agreement)
        if lenses is not None:
            known.clear(self._without_lens(lenses))
        looked, weights = self._looked(run)
        return Records(
            window=places[0].to(torch.int32),
            position=places[1].to(torch.int32),
            kl=kl,
            on_next=on_next.half(),
            promoted=ids[0, ..., :PROMOTED],
            promoted_by=values[0, ..., :PROMOTED].half(),
            suppressed=ids[1, ..., :SUPPRESSED],
            suppressed_by=values[1, ..., :SUPPRESSED].half(),
            looked=looked,
            looked_by=weights,
            lens_at=torch.arange(len(known.kl), dtype=torch.int32),
            predicted=known.ids,
            predicted_by=known.shares.half(),
            lens_kl=known.kl.half(),
            agreement=known.agreement.half(),
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

    def _looked(self, run: CopyRun) -> tuple[Tensor, Tensor]:
        """The positions with the largest attention weights of every head, and these weights."""
        rows = [
            run.captured.attention[layer][:, self._heads(layer), 0].float().cpu()
            for layer in self._layers()
        ]
        best = torch.cat(rows, 1).topk(min(LOOKED, rows[0].shape[-1]), dim=-1)
        missing = (0, LOOKED - best.values.shape[-1])
        return pad(best.indices, missing).to(torch.int32), pad(best.values, missing).half()

    def _lens_logits(
        self, run: CopyRun, lenses: Lenses, span: tuple[int, int]
    ) -> Float[Tensor, "row_and_mean head d_vocab"]:
        """What the lenses of some heads predict in each row, and of the replacement in the last.

        A lens is read once for all of them, because its weights are most of what it costs.
        """
        found = []
        for layer in self._layers(*span):
            heads, lens = self._heads(layer), lenses.by_layer.get(layer)
            z = run.captured.z[layer][:, 0]
            both = torch.cat([z, self.replacement.heads[layer].to(z)[None]])
            if lens is None or lens.site != "head":
                shape = (len(both), len(heads), len(lenses.baseline))
                found.append(torch.zeros(shape, device=z.device))
                continue
            with fast_products():
                found.append(lens(both)[:, heads].float())
        return torch.cat([each.to(found[0].device) for each in found], 1)

    def _without_lens(self, lenses: Lenses) -> Bool[Tensor, " head"]:
        of_layer = {
            layer: lens is None or lens.site != "head"
            for layer, lens in ((each, lenses.by_layer.get(each)) for each in self._layers())
        }
        return torch.tensor([of_layer[layer] for layer, _ in self.sites])


class _Knowledge(NamedTuple):
    """What lenses tell at some rows: the fields of `Records` about them."""

    ids: Int[Tensor, "row head 4"]
    shares: Float[Tensor, "row head 4"]
    kl: Float[Tensor, "row head"]
    agreement: Float[Tensor, "row head"]

    @classmethod
    def empty(cls, n_rows: int, n: int) -> _Knowledge:
        ids = torch.zeros(n_rows, n, PREDICTED, dtype=torch.int32)
        return cls(ids, torch.zeros(ids.shape), torch.zeros(n_rows, n), torch.zeros(n_rows, n))

    def put(self, row: int, span: slice, said: LensPrediction, agreement: Tensor) -> None:
        self.ids[row, span] = said.adds.ids.to(self.ids)
        self.shares[row, span] = said.adds.values.to(self.shares)
        self.kl[row, span] = said.kl_from_baseline.to(self.kl)
        self.agreement[row, span] = agreement.to(self.agreement)

    def clear(self, heads: Bool[Tensor, " head"]) -> None:
        """Heads without a lens know nothing."""
        for each in self:
            each[:, heads] = 0


def _first(cache: DynamicCache, rows: Int[Tensor, " row"], n_tokens: int) -> DynamicCache:
    """The keys and values of the first tokens of some rows, as a cache of their own."""
    found = DynamicCache()
    for number, layer in enumerate(cache.layers):
        assert isinstance(layer, DynamicLayer), "a model with copies has attention in every layer"
        keys, values = layer.keys, layer.values
        assert keys is not None and values is not None, "the windows have run"
        found.update(keys[rows, :, :n_tokens], values[rows, :, :n_tokens], number)
    return found
