"""What is measured for an atlas after the scan: sequences, roles, composition, directions.

Each function returns the atlas with one part more. What a model cannot give (weights that are not
found, roles that do not apply) is left out, and `Atlas.tables` says why under ``left_out``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from saccade.errors import ModelError, UsageError
from saccade.interp.atlas.composition import (
    ComposedPair,
    Composition,
    PathTest,
    head_composition,
    measured_paths,
)
from saccade.interp.atlas.qk_directions import direction_table
from saccade.interp.atlas.sequences import sample_sequences
from saccade.interp.lenses.gather import Checkpoint, Progress
from saccade.interp.lenses.lens_set import share_explained
from saccade.interp.studies.roles.role import Roles
from saccade.interp.studies.roles.roles import QUICK, find_roles

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses

PAIRS = 5  # that compose most, of each head and direction
PLACES = 4  # positions at which paths are measured


def with_sequences(
    model: LanguageModel,
    atlas: Atlas,
    *,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Atlas:
    """The atlas with sampled sequences, for which the model runs again."""
    atlas.check_model(model)
    found = sample_sequences(model, atlas, checkpoint=checkpoint, progress=progress)
    return replace(atlas, extra={**atlas.extra, **found.tensors()})


def with_quality(atlas: Atlas, lenses: Lenses) -> Atlas:
    """The atlas with the held-out quality of its lenses, if they were scored."""
    if not lenses.quality:
        return atlas
    known = set(lenses.sites)
    found = {
        f"{layer}.{head}": share_explained(lenses.quality_of(layer, head))
        for layer, head in atlas.sites
        if (layer, head) in known
    }
    return _with_table(atlas, "quality", {k: q for k, q in found.items() if q is not None})


def with_roles(model: LanguageModel, atlas: Atlas, *, progress: Progress | None = None) -> Atlas:
    """The atlas with the scores of all heads for the roles that its settings name.

    A role that cannot be measured on this model, or without its data, is left out; the others stay.
    """
    which = atlas.provenance.config.roles
    if which == "none":
        return atlas
    atlas.check_model(model)
    roles = find_roles(
        model,
        roles=QUICK if which == "quick" else None,
        seed=atlas.provenance.config.seed,
        leave_out=True,
        progress=progress,
    )
    for name, reason in roles.left_out.items():
        atlas = _without(atlas, f"role {name}", reason)
    return _with_table(
        _with_table(atlas, "roles", _scores(atlas, roles)), "role_tests", _tests(roles)
    )


def _scores(atlas: Atlas, roles: Roles) -> dict[str, dict[str, float]]:
    """By head: its score for each role that applies to it."""
    rows = {(row["layer"], row["head"]): row for row in roles.to_dict()["heads"]}
    return {
        f"{layer}.{head}": {
            name: rows[layer, head][name]
            for name in roles.found
            if rows[layer, head][name] is not None
        }
        for layer, head in atlas.sites
    }


def _tests(roles: Roles) -> dict[str, Any]:
    """By role: its test, and the interval of every head."""
    found = {}
    for name, each in roles.found.items():
        intervals = {
            f"{layer}.{head}": [float(each.low[layer][head]), float(row[head])]
            for layer, row in each.high.items()
            for head in range(len(row))
            if bool(row[head].isfinite()) and bool(each.low[layer][head].isfinite())
        }
        found[name] = {
            "test": roles.test_of(name),
            "threshold": roles.thresholds.get(name),
            "intervals": intervals,
        }
    return found


def with_composition(
    model: LanguageModel,
    atlas: Atlas,
    *,
    replacement: Replacement,
    progress: Progress | None = None,
) -> Atlas:
    """The atlas with the pairs of heads that compose most, by weights, and the paths measured."""
    atlas.check_model(model)
    if progress is not None:
        progress("composition", 0, 2)
    try:
        composition = head_composition(model, atlas.sites)
        found = _largest(composition, atlas)
    except ModelError as error:
        return _without(atlas, "composition", error)
    if progress is not None:
        progress("composition", 1, 2)
    try:
        test = measured_paths(
            model,
            composition,
            atlas.windows,
            _places(atlas),
            replacement=replacement,
            seed=atlas.provenance.config.seed,
        )
    except (ModelError, UsageError) as error:  # of one layer there are no pairs
        atlas = _without(atlas, "measured paths", error)
    else:
        atlas = _with_table(atlas, "paths", test.to_dict())
        _add_measured(found, test)
    if progress is not None:
        progress("composition", 2, 2)
    return _with_table(atlas, "composition", found)


def with_directions(
    model: LanguageModel, atlas: Atlas, *, progress: Progress | None = None
) -> Atlas:
    """The atlas with why heads look where they look: directions of queries and keys."""
    atlas.check_model(model)
    try:
        return _with_table(atlas, "why", direction_table(model, atlas, progress=progress))
    except (ModelError, UsageError) as error:  # UsageError: of a short text too little is left out
        return _without(atlas, "why", error)


def _largest(composition: Composition, atlas: Atlas) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By head: what it reads from earlier heads, and which later heads read it."""
    found = {}
    for site in atlas.sites:
        pairs = composition.largest(8 * PAIRS, head=site)
        found[f"{site[0]}.{site[1]}"] = {
            "reads": [_pair(pair, pair.source) for pair in pairs if pair.reader == site][:PAIRS],
            "feeds": [_pair(pair, pair.reader) for pair in pairs if pair.source == site][:PAIRS],
        }
    return found


def _pair(pair: ComposedPair, other: tuple[int, int]) -> dict[str, Any]:
    return {
        "head": f"{other[0]}.{other[1]}",
        "kind": pair.kind,
        "score": pair.score,
        "above": pair.above,
    }


def _add_measured(found: dict[str, dict[str, list[dict[str, Any]]]], test: PathTest) -> None:
    """Write the measured effect of a path beside its pair."""
    kl = {
        (f"{p.source[0]}.{p.source[1]}", f"{p.reader[0]}.{p.reader[1]}"): p.kl for p in test.pairs
    }
    for name, sides in found.items():
        for pair in sides["reads"]:
            pair["measured_kl"] = kl.get((pair["head"], name))
        for pair in sides["feeds"]:
            pair["measured_kl"] = kl.get((name, pair["head"]))


def _places(atlas: Atlas) -> list[tuple[int, int]]:
    """Some of the recorded positions, evenly spaced."""
    n = len(atlas.records)
    rows = sorted({round((at + 0.5) * n / PLACES - 0.5) for at in range(min(PLACES, n))})
    window, position = atlas.records.window[rows], atlas.records.position[rows]
    return list(zip(window.tolist(), position.tolist(), strict=True))


def _with_table(atlas: Atlas, name: str, table: Mapping[str, Any]) -> Atlas:
    return replace(atlas, tables={**atlas.tables, name: table})


def _without(atlas: Atlas, part: str, reason: object) -> Atlas:
    return _with_table(atlas, "left_out", {**atlas.tables.get("left_out", {}), part: str(reason)})
