"""The figures of an evaluation: by lens, averaged, as JSON and as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

MEASURES = ("kl", "gain", "top1", "top10", "bits_per_byte")
QUALITY = ("kl", "gain", "top1", "top10")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How good one set of lenses is; every tensor has one figure a site."""

    kind: str
    method: str
    sites: tuple[tuple[int, int], ...]
    """(layer, head) of every lens; a lens of the residual stream is head 0 of its layer."""
    kl: Float[Tensor, " site"]
    """KL(model || lens), in nats a word."""
    gain: Float[Tensor, " site"]
    """KL of the constant lens less that of the lens."""
    top1: Float[Tensor, " site"]
    """Share of positions where the lens's top word is the model's."""
    top10: Float[Tensor, " site"]
    """Share of positions where the model's top word is among the lens's ten."""
    bits_per_byte: Float[Tensor, " site"]
    """Surprise of the lens at the words that really follow."""
    share: Float[Tensor, " site"] | None = None
    """Gain as a share of the best lens's; not a number where that has none."""
    total_share: float | None = None
    """All gains together as a share of the best lenses' together."""

    def by_measure(self) -> dict[str, Float[Tensor, " site"]]:
        """Every measure that was taken, by its name."""
        found = {name: getattr(self, name) for name in (*MEASURES, "share")}
        return {name: values for name, values in found.items() if values is not None}

    @property
    def means(self) -> dict[str, float]:
        """The mean over the sites; for ``share`` the ratio of the summed gains.

        A mean of ratios would be ruled by the few heads that nobody gains anything at.
        """
        means = {name: float(getattr(self, name).mean()) for name in MEASURES}
        return means if self.total_share is None else {**means, "share": self.total_share}

    def by_layer(self, measure: str) -> dict[int, Float[Tensor, " head"]]:
        """One measure as a row of heads for each layer."""
        values = self.by_measure()[measure]
        layers = torch.tensor([layer for layer, _ in self.sites])
        return {int(layer): values[layers == layer] for layer in layers.unique()}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers: the means, and a row for each lens."""
        columns = {name: _plain(values) for name, values in self.by_measure().items()}
        rows = [
            {"layer": layer, "head": head, **{name: col[i] for name, col in columns.items()}}
            for i, (layer, head) in enumerate(self.sites)
        ]
        means = {name: _finite(value) for name, value in self.means.items()}
        return {"kind": self.kind, "method": self.method, "mean": means, "heads": rows}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The scores of lenses on a held-out text, beside those of others on the same positions."""

    model: str
    corpus: str
    corpus_fingerprint: str
    is_fitted_on: bool
    """True where this very text is what the lenses were fitted on: nothing is held out then."""
    n_tokens: int
    n_positions: int
    """How many positions were scored; a large text is sampled evenly."""
    constant_kl: float
    """KL(model || constant lens): what a lens that hears nothing has."""
    constant_bits_per_byte: float
    model_bits_per_byte: float
    """The model's own, on the same positions."""
    lenses: Scores
    baselines: tuple[Scores, ...] = ()

    def quality(self) -> dict[str, dict[str, list[float | None]]]:
        """The figures in the form that `Lenses.quality` and the manifest have."""
        return {
            name: {str(at): _plain(row) for at, row in self.lenses.by_layer(name).items()}
            for name in QUALITY
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, ready for JSON."""
        return {
            "model": self.model,
            "corpus": self.corpus,
            "corpus_fingerprint": self.corpus_fingerprint,
            "is_fitted_on": self.is_fitted_on,
            "n_tokens": self.n_tokens,
            "n_positions": self.n_positions,
            "constant_kl": _finite(self.constant_kl),
            "constant_bits_per_byte": _finite(self.constant_bits_per_byte),
            "model_bits_per_byte": _finite(self.model_bits_per_byte),
            "lenses": self.lenses.to_dict(),
            "baselines": [scores.to_dict() for scores in self.baselines],
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_table(self) -> Table:
        """The means: one row for the lenses, each baseline, the constant lens and the model."""
        names = list(self.lenses.means)
        table = Table(
            title="The mean of all lenses of a kind",
            caption=f"{self.model} on {self.n_positions:,} positions of {self.corpus}",
        )
        table.add_column("lens", no_wrap=True)
        _add_measures(table, names)
        for scores in (self.lenses, *self.baselines):
            table.add_row(f"{scores.kind} x {len(scores.sites)}", *_cells(names, scores.means))
        constant = {
            "kl": self.constant_kl,
            "gain": 0.0,
            "bits_per_byte": self.constant_bits_per_byte,
        }
        table.add_row("constant", *_cells(names, constant))
        own = {"kl": 0.0, "top1": 1.0, "top10": 1.0, "bits_per_byte": self.model_bits_per_byte}
        table.add_row("the model itself", *_cells(names, own))
        return table

    def to_layer_table(self) -> Table:
        """For each layer the mean over its heads, and its best head."""
        names = [name for name in self.lenses.means if name != "share"]
        table = Table(title=f"{self.lenses.kind} lenses by layer")
        table.add_column("layer", justify="right")
        _add_measures(table, names)
        table.add_column("best head", justify="right")
        table.add_column("its gain", justify="right")
        rows = {name: self.lenses.by_layer(name) for name in names}
        for layer, gain in rows["gain"].items():
            means = {name: float(rows[name][layer].mean()) for name in names}
            best = int(gain.argmax())
            table.add_row(str(layer), *_cells(names, means), str(best), f"{float(gain[best]):.3f}")
        return table

    def to_head_table(self) -> Table:
        """One row for every lens."""
        columns = self.lenses.by_measure()
        table = Table(title=f"{self.lenses.kind} lenses by head")
        for name in ("layer", "head"):
            table.add_column(name, justify="right")
        _add_measures(table, list(columns))
        for i, (layer, head) in enumerate(self.lenses.sites):
            figures = {name: float(values[i]) for name, values in columns.items()}
            table.add_row(str(layer), str(head), *_cells(list(columns), figures))
        return table


# KL and gain are in nats a word.
HEADINGS = {"kl": "KL", "bits_per_byte": "bits/byte", "share": "of best"}


def _add_measures(table: Table, names: list[str]) -> None:
    for name in names:
        table.add_column(HEADINGS.get(name, name), justify="right")


def _cells(names: list[str], figures: Mapping[str, float]) -> list[str]:
    return [_cell(name, figures.get(name)) for name in names]


def _cell(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.1f}%" if name in {"top1", "top10", "share"} else f"{value:.3f}"


def _plain(values: Float[Tensor, " n"]) -> list[Any]:
    return [_finite(value) for value in values.tolist()]


def _finite(value: float) -> float | None:
    # JSON knows no infinity; six digits are more than the sampling of positions leaves certain.
    return round(value, 6) if math.isfinite(value) else None
