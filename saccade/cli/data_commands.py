"""`saccade data`: list and download data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import Json, showing_progress

DATA_LIST_EXAMPLES = """
saccade data list
saccade data list --data ~/datasets --json
"""


def data_list(
    data: Annotated[
        Path | None, typer.Option(help="Look in this folder first, then in the usual locations.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the data sets: what each is, its size and licence, and where it was found."""
    from saccade.zoo.tasks.datasets import list_data

    listed = list_data(data)
    if as_json:
        rows = [
            {
                "name": each.data_set.name,
                "about": each.data_set.about,
                "bytes": each.data_set.n_bytes,
                "licence": each.data_set.licence,
                "source": each.data_set.source,
                "can_be_fetched": each.data_set.can_be_fetched,
                "where": None if each.where is None else str(each.where),
            }
            for each in listed
        ]
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    for each in listed:
        held = each.data_set
        size = "" if held.n_bytes is None else f", {held.n_bytes / 1e6:.1f} MB"
        missing = f"`saccade data fetch {held.name}`" if held.can_be_fetched else held.source
        typer.echo(f"{held.name}: {held.about}{size}; {held.licence}")
        typer.echo(f"  {'not here: ' + missing if each.where is None else each.where}")


DATA_FETCH_EXAMPLES = """
saccade data fetch multi30k
saccade data fetch tinyshakespeare --json
"""


def data_fetch(
    name: Annotated[str, typer.Argument(help="A data set; `saccade data list` has the names.")],
    as_json: Json = False,
) -> None:
    """Download a data set into the cache, where every recipe finds it."""
    from saccade.zoo.tasks.datasets import fetch_data, known_data_set

    licence = known_data_set(name).licence
    typer.echo(f"{name} may be used under: {licence}", err=True)
    with showing_progress() as progress:
        folder = fetch_data(name, progress=progress)
    typer.echo(json.dumps({"name": name, "where": str(folder)}) if as_json else str(folder))
