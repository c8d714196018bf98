"""Kinds of lenses compared on the same heads and text: KL from the model, and fidelity."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from saccade.errors import LensError
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.studies.fidelity.ablation_check import check_ablation
from saccade.interp.studies.fidelity.causal_basis import (
    Influence,
    lens_influence,
    model_influence,
    principal_basis,
)
from saccade.interp.studies.fidelity.config import FidelityConfig
from saccade.interp.studies.fidelity.geometry import Estimate, estimate, plain, resampled_means
from saccade.interp.studies.fidelity.measure import RunCounter, choose_windows, few_windows
from saccade.interp.studies.fidelity.stage import FIRST, Stage

MEASURES = ("kl", "ablation", "alignment", "spearman")
HEADINGS = ("KL", "ablation", "alignment", "sensitivity")
# Of the principal directions of a head, this many, evenly spaced from the largest on.
DIRECTIONS = 16


class KindRow(NamedTuple):
    """One kind of lens: the means over all heads."""

    name: str
    kl: Estimate
    """KL(model || lens), in nats per token."""
    ablation: Estimate
    alignment: Estimate
    spearman: Estimate | None
    """Of the influence on lens and model, over principal directions of z, the same for all kinds;
    None where directions were not measured."""


@dataclass(frozen=True, kw_only=True)
class Kinds:
    """The comparison."""

    model: str
    corpus: str
    layers: tuple[int, ...]
    n_heads: int
    n_positions: int
    rows: tuple[KindRow, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "model": self.model,
            "corpus": self.corpus,
            "layers": list(self.layers),
            "n_heads": self.n_heads,
            "n_positions": self.n_positions,
            "kinds": [
                {name: plain(value) for name, value in row._asdict().items()} for row in self.rows
            ],
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_table(self) -> Table:
        """One row per kind."""
        table = Table(
            title=f"Kinds of lenses on {self.n_heads} heads of {self.model}",
            caption=f"{self.n_positions:,} positions of {self.corpus}; 95 % intervals over its "
            "windows",
        )
        table.add_column("lens", no_wrap=True)
        for heading in HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(row.name, *("-" if each is None else str(each) for each in row[1:]))
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
    metrics: dict[str, dict[str, list[Tensor]]] = {
        name: {measure: [] for measure in MEASURES} for name in lenses
    }
    n_tried = min(config.directions, DIRECTIONS)
    n_heads = sum(model.layer(layer).n_heads for layer in layers)
    counter = RunCounter(n_heads * (2 * config.windows + n_tried * config.basis_windows), progress)
    for layer in layers:
        by_name = {name: each.by_layer[layer] for name, each in lenses.items()}
        stage = Stage.of(model, windows, layer, seed=config.seed)
        for name, check in check_ablation(
            stage, by_name, tick=counter.steps(config.windows)
        ).items():
            into = metrics[name]
            into["ablation"].append(check.correlations())
            into["alignment"].append(check.alignments())
            into["kl"].append(resampled_means(stage.kl(by_name[name])))
        if n_tried:
            stage = Stage.of(model, few_windows(windows, config), layer, seed=config.seed)
            every = principal_basis(stage)
            basis = every[:, :: max(1, every.shape[1] // n_tried)]
            response = model_influence(stage, basis, tick=counter.steps(config.basis_windows))
            for name, lens in by_name.items():
                influence = Influence(lens_influence(stage, lens, basis), response)
                metrics[name]["spearman"].append(influence.correlations())
    return Kinds(
        model=model.name,
        corpus=corpus.source,
        layers=tuple(layers),
        n_heads=n_heads,
        n_positions=windows[:, FIRST:].numel(),
        rows=tuple(_row(name, each) for name, each in metrics.items()),
    )


def _row(name: str, metrics: Mapping[str, list[Float[Tensor, "bootstrap head"]]]) -> KindRow:
    means = {
        measure: estimate(torch.cat(each, 1).mean(1)) if each else None
        for measure, each in metrics.items()
    }
    kl, ablation, alignment = means["kl"], means["ablation"], means["alignment"]
    assert kl is not None and ablation is not None and alignment is not None, "always measured"
    return KindRow(name, kl, ablation, alignment, means["spearman"])


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
