"""`saccade data fetch`: download a data set and check it by its hash."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from saccade.cli.progress import showing_progress

EXAMPLES = """
saccade data fetch multi30k
saccade data fetch tinyshakespeare --json
"""


def run(
    name: Annotated[str, typer.Argument(help="A data set; `saccade data list` has the names.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Download a data set into the cache, where every recipe finds it."""
    from saccade.zoo.tasks.datasets import fetch_data, known_data_set

    licence = known_data_set(name).licence
    typer.echo(f"{name} may be used under: {licence}", err=True)
    with showing_progress() as progress:
        folder = fetch_data(name, progress=progress)
    typer.echo(json.dumps({"name": name, "where": str(folder)}) if as_json else str(folder))
