"""The metrics of a measurement of fidelity: by head, averaged, as JSON and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from rich.console import Group
from rich.table import Table
from torch import Tensor

from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.studies.fidelity.geometry import Estimate, estimate, plain

# The metrics that are stored in the manifest of the lenses and can be drawn.
QUALITY = ("ablation", "alignment", "spearman")
# One table each: what is compared with the model, by the field of a head.
TABLES = {
    "ablation: the head set to its mean": {
        "ablation": "lens",
        "raw_ablation": "unembedding",
        "gradient_ablation": "gradient",
        "path_ablation": "gradient on path",
    },
    "alignment: the head from another text": {
        "alignment": "lens",
        "raw_alignment": "unembedding",
        "gradient_alignment": "gradient",
        "path_alignment": "gradient on path",
    },
    "causal basis: one direction set to its mean": {
        "spearman": "lens",
        "variance": "variance alone",
        "partial": "lens given variance",
    },
    "random basis: the same for random directions": {
        "control": "lens",
        "control_variance": "variance alone",
        "control_partial": "lens given variance",
    },
}


@dataclass(frozen=True, kw_only=True)
class HeadFidelity:
    """How far the lens of one head agrees with the effects of the head."""

    layer: int
    head: int
    effect: float
    """KL(model || model without the head), in nats per token: how large the effect is that the
    lens should predict."""
    ablation: Estimate
    """Correlation of the lens's change with the model's when the head is ablated."""
    alignment: Estimate
    """The same within each position when the head is resampled, averaged over positions."""
    raw_ablation: Estimate | None = None
    """The same of the raw unembedding; None where heads have no direct path to the tokens."""
    raw_alignment: Estimate | None = None
    gradient_ablation: Estimate | None = None
    """The same of the gradient at the text; None where attribution was skipped."""
    gradient_alignment: Estimate | None = None
    path_ablation: Estimate | None = None
    """The same of the gradient half-way to the mean, or at more points on the path to it."""
    path_alignment: Estimate | None = None
    spearman: Estimate | None = None
    """Rank correlation of a direction's influence on the lens with that on the model, over the
    causal basis; None where it was skipped."""
    variance: Estimate | None = None
    """Rank correlation of the variance along a direction with its influence on the model: the
    control without a lens."""
    partial: Estimate | None = None
    """``spearman`` with the variance partialled out: what the lens knows beyond it."""
    control: Estimate | None = None
    """``spearman`` over random directions."""
    control_variance: Estimate | None = None
    control_partial: Estimate | None = None

    @property
    def is_above_raw(self) -> bool | None:
        """Whether the lens beats the raw unembedding by both metrics; None without one."""
        if self.raw_ablation is None or self.raw_alignment is None:
            return None
        is_above = self.ablation.value > self.raw_ablation.value
        return is_above and self.alignment.value > self.raw_alignment.value

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """The fidelity of the lenses of some heads."""

    model: str
    kind: str
    corpus: str
    corpus_fingerprint: str
    is_fitted_on: bool
    """True if the lenses were fitted on this same text."""
    n_positions: int
    heads: tuple[HeadFidelity, ...]
    mean: dict[str, Estimate]
    """Every measure over all heads; ``ablation_over_raw`` is the lead over the unembedding."""

    @classmethod
    def of(
        cls,
        lenses: Lenses,
        corpus: Corpus,
        *,
        heads: tuple[HeadFidelity, ...],
        metrics: Mapping[str, Float[Tensor, "bootstrap head"]],
        n_positions: int,
    ) -> Fidelity:
        """From the resampled metrics of all heads."""
        means = {name: each.mean(1) for name, each in metrics.items()}
        for name in ("ablation", "alignment"):
            if f"raw_{name}" in means:
                means[f"{name}_over_raw"] = means[name] - means[f"raw_{name}"]
        return cls(
            model=lenses.model.name,
            kind=f"{lenses.provenance.kind} ({lenses.provenance.method})",
            corpus=corpus.source,
            corpus_fingerprint=corpus.fingerprint,
            is_fitted_on=corpus.fingerprint == lenses.provenance.corpus_fingerprint,
            n_positions=n_positions,
            heads=heads,
            mean={name: estimate(each) for name, each in means.items()},
        )

    def by_layer(self, measure: str) -> dict[int, Float[Tensor, " head"]]:
        """One measure as a row of heads per layer; NaN where it was not measured."""
        rows: dict[int, Tensor] = {}
        for each in self.heads:
            row = rows.get(each.layer, torch.zeros(0))
            missing = max(0, each.head + 1 - len(row))
            row = torch.cat([row, torch.full((missing,), torch.nan)])
            found = getattr(each, measure)
            row[each.head] = found.value if isinstance(found, Estimate) else torch.nan
            rows[each.layer] = row
        return rows

    def quality(self) -> dict[str, dict[str, list[float | None]]]:
        """The metrics in the form of `Lenses.quality` and of the manifest."""
        return {
            name: {
                str(layer): [None if math.isnan(v) else plain(v) for v in row.tolist()]
                for layer, row in self.by_layer(name).items()
            }
            for name in QUALITY
            if getattr(self.heads[0], name) is not None
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, ready for JSON."""
        own = ("model", "kind", "corpus", "corpus_fingerprint", "is_fitted_on", "n_positions")
        return {
            **{name: getattr(self, name) for name in own},
            "mean": {name: plain(each) for name, each in self.mean.items()},
            "heads": [each.to_dict() for each in self.heads],
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_tables(self) -> Group:
        """One per intervention: each head, then the mean; * if not above the unembedding."""
        shown = [
            self._table(title, names)
            for title, columns in TABLES.items()
            if (names := {k: v for k, v in columns.items() if getattr(self.heads[0], k)})
        ]
        return Group(
            f"Fidelity of the {self.kind} lenses of {self.model}",
            *shown,
            f"{self.n_positions:,} positions of {self.corpus}; 95 % intervals over its windows; "
            "* not above the raw unembedding",
        )

    def _table(self, title: str, names: Mapping[str, str]) -> Table:
        table = Table(title=title, title_justify="left")
        table.add_column("head", no_wrap=True)
        table.add_column("effect", justify="right", no_wrap=True)
        for heading in names.values():
            table.add_column(heading, justify="right")
        for each in self.heads:
            mark = "*" if each.is_above_raw is False else ""
            cells = [getattr(each, name).short() for name in names]
            table.add_row(f"{each.layer}.{each.head}{mark}", f"{each.effect:.4f}", *cells)
        table.add_section()
        effect = sum(each.effect for each in self.heads) / len(self.heads)
        table.add_row("mean", f"{effect:.4f}", *(self.mean[name].short() for name in names))
        return table
