"""`saccade evaluate`: run a model on the data of others, beside the published numbers."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli import options
from saccade.store.schema import Seed

if TYPE_CHECKING:
    from saccade.interp.studies.suites.suite import Row, SuiteResult

EVALUATE_EXAMPLES = """
saccade evaluate lens-eval --limit 20
saccade evaluate my-items.jsonl --json
"""


@options.with_model_options
def evaluate_suite_command(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            help="A suite by its name, or a JSON or JSONL file of items like those of a suite.",
        ),
    ],
    limit: Annotated[
        int, typer.Option(help="At most this many items of each data set; 0 for all.", min=0)
    ] = 0,
    seed: Annotated[Seed, typer.Option(help="Seed of what is drawn: items, controls.")] = 0,
    data: options.DataFolder = None,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    as_json: options.Json = False,
    png: Annotated[Path | None, typer.Option(help="Write a plot of the table.")] = None,
) -> None:
    """Evaluate a model on data that others wrote, with published numbers beside its own.

    lens-eval: hidden steps of a thought, read from residual streams and from single heads. roles:
    name movers, S-inhibition, induction and function-vector heads, and do they hold? guard:
    injected instructions, found by guards that never saw the set. bias: WinoBias, StereoSet, rated
    professions; the heads that carry gender, and what silencing them costs. edit: memory injection
    on hand-written prompts, beside other memories.
    """
    from saccade.interp.studies.suites.suite import SuiteConfig
    from saccade.interp.studies.suites.suites import evaluate_suite, find_items, save_plot

    find_items(suite, data)  # what is missing is said before a model is opened
    with options.showing_progress() as progress:
        found = evaluate_suite(
            model.open(), suite, SuiteConfig(limit=limit, seed=seed), data=data, progress=progress
        )
    if png is not None:
        save_plot(png, found)
        typer.echo(f"wrote {png}", err=True)
    if as_json:
        typer.echo(found.to_json())
    else:
        _show(found)
    for name, why in found.left_out.items():
        typer.echo(f"left out: {name}: {why}", err=True)


def _show(found: SuiteResult) -> None:
    typer.echo(f"{found.suite} on {Path(found.model).name}: {found.about}")
    typer.echo(f"items: {found.source}")
    for data, rows in groupby(found.rows, key=lambda each: each.data):
        listed = list(rows)
        wide = max(len(each.method) for each in listed)
        metric = max(len(each.metric) for each in listed)
        typer.echo(f"\n{data}")
        for each in listed:
            typer.echo(
                f"  {each.method:<{wide}}  {each.metric:<{metric}}  {_value(each):<22}  "
                f"n {each.n}{_beside(each)}"
            )
        for note in dict.fromkeys(each.note for each in listed if each.note):
            typer.echo(f"  note: {note}")
    for note in found.notes:
        typer.echo(f"note: {note}")


def _value(row: Row) -> str:
    if row.low is None:
        return f"{row.value:.3f}"
    return f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]"


def _beside(row: Row) -> str:
    found = ""
    if row.excess is not None and row.control is not None:
        ends = f"[{row.excess_low:+.3f}, {row.excess_high:+.3f}]"
        found = f"  control {row.control:.3f}  excess {row.excess:+.3f} {ends}"
    return f"{found}  published: {row.published}" if row.published else found
