"""Kinds of lenses, attribution and variance compared on the same heads and text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rich.console import Group
from rich.table import Table
from torch import Tensor

from saccade.errors import LensError
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.studies.fidelity.ablation_check import check_ablation, rules_of
from saccade.interp.studies.fidelity.causal_basis import (
    Influence,
    direction_variance,
    lens_influence,
    model_influence,
    principal_basis,
)
from saccade.interp.studies.fidelity.config import FidelityConfig
from saccade.interp.studies.fidelity.geometry import Estimate, estimate, plain, resampled_means
from saccade.interp.studies.fidelity.measure import (
    RunCounter,
    choose_windows,
    few_windows,
    runs_per_head,
)
from saccade.interp.studies.fidelity.stage import FIRST, Stage

MEASURES = ("kl", "ablation", "alignment", "spearman", "partial")
# The tables of all heads, by the fields of a row.
TABLES = (
    {"kl": "KL to the model", "ablation": "ablation", "alignment": "alignment"},
    {"spearman": "sensitivity to directions", "partial": "given their variance"},
)
VARIANCE = "variance alone"
# Of the principal directions of a head, this many, evenly spaced from the largest on.
DIRECTIONS = 16


class KindRow(NamedTuple):
    """One kind of lens, attribution or the variance: the means over all heads.

    None: not measured, or not defined for it.
    """

    name: str
    kl: Estimate | None
    """KL(model || lens), in nats per token."""
    ablation: Estimate | None
    alignment: Estimate | None
    spearman: Estimate | None
    """Of the influence on lens and model, over principal directions of z, the same for all kinds;
    for the variance, that of the variance along them with the influence on the model."""
    partial: Estimate | None
    """The same with the variance partialled out."""


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """The comparison."""

    model: str
    corpus: str
    layers: tuple[int, ...]
    n_heads: int
    n_positions: int
    rows: tuple[KindRow, ...]
    by_layer: dict[int, tuple[KindRow, ...]]
    """The same, the means over the heads of one layer."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "model": self.model,
            "corpus": self.corpus,
            "layers": list(self.layers),
            "n_heads": self.n_heads,
            "n_positions": self.n_positions,
            "kinds": _plain(self.rows),
            "by_layer": {str(layer): _plain(rows) for layer, rows in self.by_layer.items()},
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_tables(self) -> Group:
        """One row per kind; then the ablation correlation of each layer, if there are several."""
        shown = [table for columns in TABLES if (table := self._table(columns)).row_count]
        return Group(
            f"Predictions of the effects of {self.n_heads} heads of {self.model}",
            *shown,
            *([self._layers()] if len(self.by_layer) > 1 else []),
            f"{self.n_positions:,} positions of {self.corpus}; 95 % intervals over its windows",
        )

    def _table(self, columns: Mapping[str, str]) -> Table:
        table = Table("prediction by")
        for heading in columns.values():
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            cells = [getattr(row, name) for name in columns]
            if any(cells):
                table.add_row(row.name, *("-" if each is None else str(each) for each in cells))
        return table

    def _layers(self) -> Table:
        table = Table(title="ablation by layer", title_justify="left")
        table.add_column("layer", justify="right")
        for row in self.rows:
            if row.ablation is not None:
                table.add_column(row.name, justify="right")
        for layer, rows in self.by_layer.items():
            found = [f"{row.ablation.value:.2f}" for row in rows if row.ablation is not None]
            table.add_row(str(layer), *found)
        return table


def compare_kinds(
    lenses: Mapping[str, Lenses],
    corpus: Corpus,
    *,
    layers: Sequence[int],
    config: FidelityConfig | None = None,
    progress: Progress | None = None,
) -> Kinds:
    """Measure lenses of several kinds in the same way: the model is run once for all of them.

    Args:
        lenses: by display name; all bound to one model, each with a lens for every layer.
        corpus: text that none of them was fitted on.
    """
    config = config or FidelityConfig()
    model = _checked(lenses, layers).model
    windows = choose_windows(corpus, config)
    rules = rules_of(config.gradients)
    n_tried = min(config.directions, DIRECTIONS)
    n_heads = sum(model.layer(layer).n_heads for layer in layers)
    names = [*lenses, *(rule.name for rule in rules), *([VARIANCE] if n_tried else [])]
    metrics: dict[str, dict[str, list[Tensor]]] = {
        name: {measure: [] for measure in MEASURES} for name in names
    }
    runs = runs_per_head(config) * config.windows + n_tried * config.basis_windows
    counter = RunCounter(n_heads * runs, progress)
    for layer in layers:
        by_name = {name: each.by_layer[layer] for name, each in lenses.items()}
        stage = Stage.of(model, windows, layer, seed=config.seed)
        checks = check_ablation(stage, by_name, rules=rules, tick=counter.steps(config.windows))
        for name, check in checks.items():
            metrics[name]["ablation"].append(check.correlations())
            metrics[name]["alignment"].append(check.alignments())
        for name, lens in by_name.items():
            metrics[name]["kl"].append(resampled_means(stage.kl(lens)))
        if n_tried:
            stage = Stage.of(model, few_windows(windows, config), layer, seed=config.seed)
            every = principal_basis(stage)
            basis = every[:, :: max(1, every.shape[1] // n_tried)]
            response = model_influence(stage, basis, tick=counter.steps(config.basis_windows))
            variance = direction_variance(stage, basis)
            for name, lens in by_name.items():
                influence = Influence(lens_influence(stage, lens, basis), response, variance)
                metrics[name]["spearman"].append(influence.correlations())
                metrics[name]["partial"].append(influence.partials())
            alone = Influence(variance, response, variance)
            metrics[VARIANCE]["spearman"].append(alone.correlations())
    return Kinds(
        model=model.name,
        corpus=corpus.source,
        layers=tuple(layers),
        n_heads=n_heads,
        n_positions=windows[:, FIRST:].numel(),
        rows=tuple(_row(name, each) for name, each in metrics.items()),
        by_layer={
            layer: tuple(
                _row(name, {measure: found[at : at + 1] for measure, found in each.items()})
                for name, each in metrics.items()
            )
            for at, layer in enumerate(layers)
        },
    )


def _plain(rows: Sequence[KindRow]) -> list[dict[str, Any]]:
    return [{name: plain(value) for name, value in row._asdict().items()} for row in rows]


def _row(name: str, metrics: Mapping[str, list[Float[Tensor, "bootstrap head"]]]) -> KindRow:
    means = {
        measure: estimate(torch.cat(each, 1).mean(1)) if each else None
        for measure, each in metrics.items()
    }
    return KindRow(name, **means)


def _checked(lenses: Mapping[str, Lenses], layers: Sequence[int]) -> Lenses:
    first = next(iter(lenses.values()))
    for name, each in lenses.items():
        if each.model is not first.model:
            raise LensError(
                f"the {name} lenses are bound to another model",
                hint="load them for the same opened model",
            )
        if missing := [layer for layer in layers if layer not in each.by_layer]:
            raise LensError(
                f"the {name} lenses have none for layer {missing[0]}",
                hint="choose layers that all of them have",
            )
    return first
