"""The page of a head, and the list of all heads: what the viewer and exports show, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch

from saccade.interp.atlas.labels import Label, make_labels
from saccade.interp.atlas.looks import histogram, top_tokens
from saccade.interp.atlas.sequences import INTERVALS, edges_of, intervals, sequences_of
from saccade.interp.atlas.token_shares import Kind, TokenShares, token_shares, tokens_of_head
from saccade.interp.lenses.top_tokens import plain

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas

TOKENS = 20
LOOK_TOKENS = 20
CONTEXTS, OF_EACH = 12, 3
SEQUENCES = {INTERVALS: 5}  # shown of an interval; the atlas holds more
LEAST_SHOWN = 0.02  # smaller weights of a sequence cannot be told apart by colour
CONTEXT_TOKENS = 48  # shown before a position
# Effects in nats: a stratum is what lies between two of these bounds.
BOUNDS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, float("inf"))
BINS = [10.0**each for each in range(-6, 2)]  # of the histogram of effects


class AtlasPages:
    """Pages of one atlas; what they share is computed once."""

    def __init__(self, atlas: Atlas) -> None:
        self.atlas = atlas
        self._shares: dict[Kind, TokenShares] = {}

    @cached_property
    def labels(self) -> list[Label]:
        """The label of every head."""
        return make_labels(self.atlas)

    @cached_property
    def model(self) -> str:
        """The name of the model; pages are shared and must not show a path of this machine."""
        path = PurePath(self.atlas.provenance.model)
        is_local = path.is_absolute() or path.parts[:1] in ((".",), ("..",))
        return path.name if is_local else self.atlas.provenance.model

    @cached_property
    def sources(self) -> list[str]:
        """The names of the sources: of files without their folders, unless two are the same."""
        full = self.atlas.provenance.sources
        short = [PurePath(each).name for each in full]
        return short if len(set(short)) == len(short) else list(full)

    @cached_property
    def _intervals(self) -> torch.Tensor:
        return intervals(self.atlas)

    @cached_property
    def n_special(self) -> int:
        """1 if every window begins with one same token, which the tokenizer adds to a text."""
        first = self.atlas.windows[:, 0]
        return int(len(first) > 1 and bool((first == first[0]).all()))

    def overview(self) -> dict[str, Any]:
        """All heads with all their metrics, and what the atlas was made of."""
        atlas = self.atlas
        provenance = atlas.provenance
        rows = [atlas.metric_row(at) for at in range(len(atlas.sites))]
        return plain(
            {
                "model": self.model,
                "fingerprint": provenance.model_fingerprint,
                "sources": self.sources,
                "tokens": atlas.windows.numel(),
                "window": atlas.windows.shape[1],
                "positions": len(atlas.records),
                "replaced_by": provenance.replaced_by,
                "metrics": atlas.metrics,
                "heads": [
                    {"name": head.name, "label": label.short, **row}
                    for head, label, row in zip(atlas.heads, self.labels, rows, strict=True)
                ],
            }
        )

    def page(self, layer: int, head: int) -> dict[str, Any]:
        """Everything about one head."""
        atlas, at = self.atlas, self.atlas.index(layer, head)
        figures, label = atlas.heads[at], self.labels[at]
        return plain(
            {
                "model": self.model,
                "name": figures.name,
                "layer": layer,
                "head": head,
                "metrics": atlas.metric_row(at),
                "label": {
                    "text": label.text,
                    "matters": label.matters,
                    "facts": [
                        {"phrase": each.phrase, "rate": each.rate, "average": each.average}
                        for each in label.facts
                    ],
                },
                "does": self._does(at),
                "knows": self._knows(at),
                "looks": self._looks(at),
                "roles": dict(figures.roles),
                **self._more(at),
            }
        )

    def _tokens(self, kind: Kind, at: int) -> list[dict[str, Any]]:
        if kind not in self._shares:
            self._shares[kind] = token_shares(self.atlas, kind)
        shares = self._shares[kind]
        found = tokens_of_head(self.atlas, shares, shares.top(TOKENS), at)
        return [each._asdict() for each in found]

    def _does(self, at: int) -> dict[str, Any]:
        kl = self.atlas.records.kl[:, at]
        order = kl.argsort(descending=True, stable=True).tolist()
        values = kl.tolist()
        strata = []
        for low, high in zip(BOUNDS[-2::-1], BOUNDS[:0:-1], strict=True):
            inside = [row for row in order if low <= values[row] < high]
            # Evenly spaced from strong to weak.
            step = max(1, len(inside) // OF_EACH)
            shown = inside[step // 2 :: step][:OF_EACH]
            strata.append(
                {
                    "from": low,
                    "to": None if high == float("inf") else high,
                    "share": len(inside) / len(order),
                    "contexts": [self.context(row, at) for row in shown],
                }
            )
        counts = torch.bucketize(kl.contiguous(), torch.tensor(BINS)).bincount(
            minlength=len(BINS) + 1
        )
        return {
            "promotes": self._tokens("promoted", at),
            "suppresses": self._tokens("suppressed", at),
            "histogram": {"bounds": BINS, "share": (counts / len(order)).tolist()},
            "strongest": [self.context(row, at) for row in order[:CONTEXTS]],
            "strata": strata,
        }

    def context(self, row: int, at: int) -> dict[str, Any]:
        """A head at a recorded position: the text before it, and what it does and looks at."""
        atlas, records = self.atlas, self.atlas.records
        window, position = int(records.window[row]), int(records.position[row])
        start = max(self.n_special, position + 1 - CONTEXT_TOKENS)
        ids = atlas.windows[window, : position + 2].tolist()
        texts = atlas.show(ids)
        looked = zip(
            records.looked[row, at].tolist(), records.looked_by[row, at].tolist(), strict=True
        )
        return {
            "window": window,
            "position": position,
            "source": self.sources[int(atlas.source[window])],
            "kl": float(records.kl[row, at]),
            "on_next": float(records.on_next[row, at]),
            "start": start,
            "tokens": texts[start : position + 1],
            "next": texts[position + 1],
            "before": "".join(texts[self.n_special : start]),
            "promotes": self._changes("promoted", row, at),
            "suppresses": self._changes("suppressed", row, at),
            "looks": [[key, weight] for key, weight in looked if weight > 0],
        }

    def _changes(self, kind: str, row: int, at: int) -> list[list[Any]]:
        ids = getattr(self.atlas.records, kind)[row, at].tolist()
        by = getattr(self.atlas.records, f"{kind}_by")[row, at].tolist()
        sign = -1 if kind == "suppressed" else 1
        texts = self.atlas.show(ids)
        return [[text, each] for text, each in zip(texts, by, strict=True) if sign * each > 0]

    def _knows(self, at: int) -> dict[str, Any] | None:
        if not len(self.atlas.records.lens_at):
            return None
        figures = self.atlas.heads[at]
        return {
            "predicts": self._tokens("predicted", at),
            "lens_kl": figures.lens_kl,
            "agreement": figures.agreement,
            "quality": figures.quality,
        }

    def _looks(self, at: int) -> dict[str, Any]:
        atlas = self.atlas
        found = {
            f"{kind}s": [
                {"id": token, "text": text, "weight": weight, "occurrences": n}
                for text, (token, weight, n) in zip(
                    atlas.show([each.token for each in top]), top, strict=True
                )
            ]
            for kind, top in ((f"{kind}_token", self._top(kind, at)) for kind in ("key", "query"))
        }
        return {**found, "distance": histogram(atlas.sums, at), "sequences": self._sequences(at)}

    def _top(self, kind: Any, at: int) -> Sequence[Any]:
        return top_tokens(self.atlas.sums, kind, at, ids=self.atlas.distinct, n=LOOK_TOKENS)

    def _sequences(self, at: int) -> list[dict[str, Any]]:
        """The five strongest sampled sequences, and one of each lower interval."""
        sampled = sequences_of(self.atlas.extra)
        if sampled is None:
            return []
        found, left = [], {each: SEQUENCES.get(each, 1) for each in range(INTERVALS + 1)}
        for number, window in enumerate(sampled.window[at].tolist()):
            interval = int(self._intervals[window, at]) if window >= 0 else 0
            if not interval or not left[interval]:
                continue
            left[interval] -= 1
            tokens = self.atlas.windows[window].tolist()
            # Sequences are most of a page: per query, keys and weights in turn, weights per mille.
            looks: list[list[int]] = [[] for _ in tokens]
            for edge in edges_of(sampled.keys[at, number], sampled.weights[at, number]):
                if edge.weight >= LEAST_SHOWN:
                    looks[edge.query] += [edge.key, round(1000 * edge.weight)]
            found.append(
                {
                    "window": window,
                    "interval": interval,
                    "peak": float(self.atlas.peaks[window, at]),
                    "tokens": self.atlas.show(tokens),
                    "looks": looks,
                }
            )
        return sorted(found, key=lambda each: -each["interval"])

    def _more(self, at: int) -> dict[str, Any]:
        """What else was measured of a head, by the name of the part."""
        name = self.atlas.heads[at].name
        return {
            part: self.atlas.tables[part][name]
            for part in ("why", "composition")
            if name in self.atlas.tables.get(part, {})
        }
