"""All suites, and `evaluate_suite`, which runs one: by its name, or on a file of your own items."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import MissingPackageError, TaskError, UsageError, suggest
from saccade.interp.studies.suites.bias_suite import BiasSuite
from saccade.interp.studies.suites.edit_suite import EditSuite
from saccade.interp.studies.suites.guard_suite import GuardSuite
from saccade.interp.studies.suites.lens_eval import LensEval
from saccade.interp.studies.suites.role_suite import RoleSuite
from saccade.interp.studies.suites.suite import (
    Item,
    Progress,
    Row,
    Suite,
    SuiteConfig,
    SuiteResult,
    read_items,
)
from saccade.store.atomic import atomic_file

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

_EVERY: tuple[Suite, ...] = (
    LensEval(),
    RoleSuite(),
    GuardSuite(),
    BiasSuite(),
    EditSuite(),
)
SUITES: Mapping[str, Suite] = {each.name: each for each in _EVERY}


def evaluate_suite(
    model: LanguageModel,
    suite: str | Path,
    config: SuiteConfig | None = None,
    *,
    data: str | Path | None = None,
    progress: Progress | None = None,
) -> SuiteResult:
    """Run a model on the data of others, and put the published numbers beside its own.

    Args:
        suite: a name of `SUITES`, or a JSON or JSONL file of items of your own, which is run as the
            suite whose fields the items have.
        data: the folder with data sets; by default that of ``SACCADE_DATA``.

    Raises:
        TaskError: the data are missing or broken.
        UsageError: no such suite, or a file whose items fit none.
    """
    config = config or SuiteConfig()
    chosen, items = find_items(suite, data)
    items = {name: limited(each, config) for name, each in items.items()}
    found = chosen.run(model, items, config, progress)
    return SuiteResult(
        suite=chosen.name,
        model=model.name,
        about=chosen.about,
        source=chosen.source if str(suite) in SUITES else str(suite),
        seed=config.seed,
        rows=tuple(found.rows),
        notes=tuple(found.notes),
        left_out=dict(found.left_out),
    )


def find_items(
    suite: str | Path, data: str | Path | None = None
) -> tuple[Suite, Mapping[str, Sequence[Item]]]:
    """The suite of a name or a file, with its items."""
    if (named := SUITES.get(str(suite))) is not None:
        return named, named.read(named.find(data))
    path = Path(suite).expanduser()
    if not path.is_file():
        names = f"suites are {', '.join(SUITES)}; or give a JSON or JSONL file of your own items"
        raise UsageError(f"no suite {str(suite)!r}", hint=suggest(str(suite), SUITES, names))
    first = read_items(path, frozenset())[0]
    for each in SUITES.values():
        if each.fields <= set(first):
            return each, {path.stem: read_items(path, each.fields, each.fault)}
    known = "; ".join(f"{each.name}: {', '.join(sorted(each.fields))}" for each in SUITES.values())
    raise TaskError(
        f"{path}: items with the fields {', '.join(map(str, first))} fit no suite",
        hint=f"the fields are, {known}",
    )


def limited(items: Sequence[Item], config: SuiteConfig) -> Sequence[Item]:
    """At most ``limit`` items, in their order."""
    if not config.limit or len(items) <= config.limit:
        return items
    drawn = random.Random(config.seed).sample(range(len(items)), config.limit)
    return [items[at] for at in sorted(drawn)]


def save_plot(path: str | Path, result: SuiteResult) -> None:
    """Write a PNG: every row as a point with its interval, one panel a data set and metric."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a table needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    panels: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        panels.setdefault((row.data, row.metric), []).append(row)
    heights = [0.28 * len(rows) + 0.7 for rows in panels.values()]
    figure = Figure(figsize=(7, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)  # its own canvas: no window, no global state
    figure.suptitle(f"{result.suite}, {Path(result.model).name}", fontsize="medium")
    plots = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for plot, ((data, metric), rows) in zip(plots, panels.items(), strict=True):
        for at, row in enumerate(rows):
            if row.low is not None and row.high is not None:
                plot.plot([row.low, row.high], [at, at], color="tab:blue", linewidth=1.5)
            plot.plot(row.value, at, "o", color="tab:blue", markersize=5)
        plot.set_yticks(range(len(rows)), [row.method for row in rows], fontsize="small")
        plot.invert_yaxis()
        plot.set_title(f"{data}: {metric}", fontsize="small", loc="left")
        plot.grid(visible=True, axis="x", linewidth=0.3)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
