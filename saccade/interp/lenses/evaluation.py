"""The metrics of an evaluation: per lens, averaged, as JSON, as tables and as heat maps."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from saccade.errors import MissingPackageError
from saccade.store.atomic import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Plot
    from matplotlib.figure import Figure


MEASURES = ("kl", "gain", "top1", "top10", "bits_per_byte")
QUALITY = ("kl", "gain", "top1", "top10")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The metrics of one set of lenses; every tensor has one value per site."""

    kind: str
    method: str
    sites: tuple[tuple[int, int], ...]
    """(layer, head) of every lens; a lens of the residual stream is head 0 of its layer."""
    kl: Float[Tensor, " site"]
    """KL(model || lens), in nats per token."""
    gain: Float[Tensor, " site"]
    """KL of the baseline lens minus KL of the lens."""
    top1: Float[Tensor, " site"]
    """Share of positions where the top token of the lens is the model's top token."""
    top10: Float[Tensor, " site"]
    """Share of positions where the model's top token is among the top ten of the lens."""
    bits_per_byte: Float[Tensor, " site"]
    """Cross-entropy of the lens on the actual next tokens."""
    share: Float[Tensor, " site"] | None = None
    """Gain as a share of the gain of the best lens; NaN where that is not positive."""
    total_share: float | None = None
    """Sum of all gains as a share of the sum for the best lenses."""

    def by_measure(self) -> dict[str, Float[Tensor, " site"]]:
        """Every available metric, by name."""
        found = {name: getattr(self, name) for name in (*MEASURES, "share")}
        return {name: values for name, values in found.items() if values is not None}

    @property
    def means(self) -> dict[str, float]:
        """The mean over the sites; for ``share`` the ratio of the summed gains.

        A few heads with almost no gain for any lens would dominate a mean of ratios.
        """
        means = {name: float(getattr(self, name).mean()) for name in MEASURES}
        return means if self.total_share is None else {**means, "share": self.total_share}

    def by_layer(self, measure: str) -> dict[int, Float[Tensor, " head"]]:
        """One metric as a row of heads for each layer."""
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
    """The scores of lenses on a held-out text, and of baselines on the same positions."""

    model: str
    corpus: str
    corpus_fingerprint: str
    is_fitted_on: bool
    """True if the lenses were fitted on this same text: then nothing is held out."""
    n_tokens: int
    n_positions: int
    """Number of scored positions; a large text is sampled evenly."""
    baseline_kl: float
    """KL(model || baseline lens): the KL of a lens that ignores the activation."""
    baseline_bits_per_byte: float
    model_bits_per_byte: float
    """Bits per byte of the model itself, on the same positions."""
    lenses: Scores
    baselines: tuple[Scores, ...] = ()

    def quality(self) -> dict[str, dict[str, list[float | None]]]:
        """The metrics in the format of `Lenses.quality` and the manifest."""
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
            "baseline_kl": _finite(self.baseline_kl),
            "baseline_bits_per_byte": _finite(self.baseline_bits_per_byte),
            "model_bits_per_byte": _finite(self.model_bits_per_byte),
            "lenses": self.lenses.to_dict(),
            "baselines": [scores.to_dict() for scores in self.baselines],
        }

    def to_json(self) -> str:
        """`to_dict` as a JSON string."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    def to_table(self) -> Table:
        """The means: a row for the lenses, each baseline, the baseline lens and the model."""
        names = list(self.lenses.means)
        table = Table(
            title="The mean of all lenses of a kind",
            caption=f"{self.model} on {self.n_positions:,} positions of {self.corpus}",
        )
        table.add_column("lens", no_wrap=True)
        _add_measures(table, names)
        for scores in (self.lenses, *self.baselines):
            table.add_row(f"{scores.kind} x {len(scores.sites)}", *_cells(names, scores.means))
        baseline = {
            "kl": self.baseline_kl,
            "gain": 0.0,
            "bits_per_byte": self.baseline_bits_per_byte,
        }
        table.add_row("baseline", *_cells(names, baseline))
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
            metrics = {name: float(values[i]) for name, values in columns.items()}
            table.add_row(str(layer), str(head), *_cells(list(columns), metrics))
        return table


# KL and gain are in nats per token.
HEADINGS = {"kl": "KL", "bits_per_byte": "bits/byte", "share": "of best"}


def _add_measures(table: Table, names: list[str]) -> None:
    for name in names:
        table.add_column(HEADINGS.get(name, name), justify="right")


def _cells(names: list[str], values: Mapping[str, float]) -> list[str]:
    return [_cell(name, values.get(name)) for name in names]


def _cell(name: str, value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.1f}%" if name in {"top1", "top10", "share"} else f"{value:.3f}"


def _plain(values: Float[Tensor, " n"]) -> list[Any]:
    return [_finite(value) for value in values.tolist()]


def _finite(value: float) -> float | None:
    # JSON has no infinity; the error of sampling positions is larger than six digits.
    return round(value, 6) if math.isfinite(value) else None


# Heat map of one metric for every head: layers x heads.

CELL, MARGIN = 0.22, 2.2  # inches
# Both are readable with any colour vision, and in grey.
ONE_WAY, TWO_WAY = "viridis", "PuOr"


class Axes(NamedTuple):
    """The axis labels of a heat map."""

    across: str = "head"
    up: str = "layer"


HEADS = Axes()


def save_heat_map(
    path: str | Path,
    rows: Mapping[int, Float[Tensor, " head"]],
    *,
    title: str,
    label: str,
    axes: Axes = HEADS,
    most: float | None = None,
) -> None:
    """Write a heat map of one value per head as PNG: a row per layer, the first at the bottom.

    Values clearly on both sides of zero get a diverging colour map centred at zero. Layers may
    differ in their number of heads.

    Args:
        rows: layer -> one value per head, as returned by `Scores.by_layer`.
        label: label of the colour bar, with its unit.
        axes: axis labels, where the rows are not heads.
        most: upper end of the colour scale; larger values get the last colour.
    """
    _save(draw_heat_map(rows, title=title, label=label, axes=axes, most=most), path)


def save_heat_maps(
    path: str | Path, measures: Mapping[Any, Mapping[int, Float[Tensor, " head"]]], *, title: str
) -> None:
    """Write heat maps of several metrics side by side as PNG, each with its own colour scale.

    Args:
        measures: name of the metric -> layer -> one value per head.
    """
    shapes = [_grid(rows).shape for rows in measures.values()]
    width = sum(max(3.0, n_heads * CELL + MARGIN) for _, n_heads in shapes)
    figure = _new_figure(width, max(n_layers for n_layers, _ in shapes))
    figure.suptitle(title, fontsize="medium")
    plots = figure.subplots(1, len(shapes), squeeze=False)[0]
    for plot, (name, rows) in zip(plots, measures.items(), strict=True):
        _draw(figure, plot, rows, title=name)
    _save(figure, path)


def draw_heat_map(
    rows: Mapping[int, Float[Tensor, " head"]],
    *,
    title: str,
    label: str,
    axes: Axes = HEADS,
    most: float | None = None,
) -> Figure:
    """The heat map as a matplotlib figure, for notebooks."""
    n_layers, n_heads = _grid(rows).shape
    figure = _new_figure(max(5.0, n_heads * CELL + MARGIN), n_layers)
    _draw(figure, figure.add_subplot(), rows, title=title, label=label, axes=axes, most=most)
    return figure


def _new_figure(width: float, n_layers: int) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a heat map needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    figure = Figure(figsize=(width, max(3.0, n_layers * CELL + MARGIN)), layout="constrained")
    # A separate canvas instead of pyplot's: it opens no window and leaves no global state.
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: str | Path) -> None:
    with atomic_file(path) as temporary:
        # Always a PNG, for any file extension.
        figure.savefig(temporary, format="png", dpi=150)


def _draw(
    figure: Figure,
    plot: Plot,
    rows: Mapping[int, Tensor],
    *,
    title: str,
    label: str = "",
    axes: Axes = HEADS,
    most: float | None = None,
) -> None:
    layers, grid = sorted(rows), _grid(rows)
    n_layers, n_heads = grid.shape
    low, high, colours = _range(grid if most is None else grid.clip(max=most))
    image = plot.imshow(
        grid,
        origin="lower",
        aspect="auto",
        cmap=colours,
        vmin=low,
        vmax=high,
        interpolation="nearest",
    )
    plot.set_facecolor("0.85")  # where a layer has no such head
    plot.set_title(title, fontsize="medium", wrap=True)
    plot.set_xlabel(axes.across)
    plot.set_ylabel(axes.up)
    plot.set_xticks(_ticks(n_heads))
    places = _ticks(n_layers)
    plot.set_yticks(places, [str(layers[place]) for place in places])
    goes_on = most is not None and bool((grid > most).any())
    figure.colorbar(image, ax=plot, label=label, extend="max" if goes_on else "neither")


def _grid(rows: Mapping[int, Tensor]) -> np.ndarray:
    widest = max(len(row) for row in rows.values())
    grid = np.full((len(rows), widest), np.nan)
    for place, layer in enumerate(sorted(rows)):
        grid[place, : len(rows[layer])] = rows[layer].tolist()
    return grid


def _range(grid: np.ndarray) -> tuple[float, float, str]:
    known = grid[np.isfinite(grid)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    # A few heads just below zero do not justify half of the colour scale.
    if -low > high / 20 > 0:
        most = max(-low, high)
        return -most, most, TWO_WAY
    return low, high, ONE_WAY


def _ticks(n: int) -> list[int]:
    """Integers from 0, at most 16 for up to 1,600 values."""
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, n) if n <= 16 * step)
    return list(range(0, n, step))
