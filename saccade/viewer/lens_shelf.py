"""Lenses as the page shows them: what they were made from, and how good each is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses

LABELS = {
    "explained": "share of the constant lens's KL that the lens removes",
    "kl": "KL(model || lens), nats a token",
    "gain": "nats a token nearer to the model than the constant lens",
    "ablation": "correlation of what the lens says with what removing the head does",
    "alignment": "the same as the head is resampled, within each position",
    "spearman": "rank correlation of influence on lens and model, over the causal basis",
    "agreement": "share of tokens where the lens's first word is the model's",
}


def about_lenses(lenses: Mapping[str, Lenses]) -> list[dict[str, Any]]:
    """Every set of lenses, for JSON."""
    return [_about(name, each) for name, each in lenses.items()]


def _about(name: str, lenses: Lenses) -> dict[str, Any]:
    made = lenses.made
    return {
        "name": name,
        "kind": made.kind,
        "site": next(iter(lenses.by_layer.values())).site,
        "method": made.method,
        "objective": made.objective,
        # Where a file lies on this machine is nobody's business on a page that may be shared.
        "corpus": PurePath(made.corpus).name if "/" in made.corpus else made.corpus,
        "n_tokens": made.n_tokens,
        "seed": made.seed,
        "settings": made.settings,
        "versions": made.versions,
        "model_fingerprint": made.model_fingerprint,
        "measures": _measures(lenses),
    }


def _measures(lenses: Lenses) -> list[dict[str, Any]]:
    from saccade.lenses.head_reading import share_explained

    sites = lenses.sites
    quality = {site: lenses.quality_of(*site) for site in sites}
    explained = {site: share_explained(each) for site, each in quality.items()}
    found = {name: {s: each.get(name) for s, each in quality.items()} for name in lenses.quality}
    if any(figure is not None for figure in explained.values()):
        found = {"explained": explained, **found}
    return [_map(name, figures) for name, figures in found.items()]


def _map(name: str, figures: Mapping[tuple[int, int], float | None]) -> dict[str, Any]:
    from saccade.investigations.head_measures import is_two_way, rows_of

    rows: dict[int, list[float | None]] = {}
    for (layer, _), figure in figures.items():
        rows.setdefault(layer, []).append(figure)
    known = [figure for figure in figures.values() if figure is not None]
    return {
        "measure": name,
        "label": LABELS.get(name, name),
        "is_two_way": is_two_way(known),
        "mean": sum(known) / len(known) if known else None,
        "rows": rows_of(rows),
    }
