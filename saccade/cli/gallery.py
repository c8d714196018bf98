"""`saccade gallery`: a page of pictures of where trained systems look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import load_plugin
from saccade.cli.results import RUNS, finished_runs
from saccade.errors import UsageError

GALLERY_EXAMPLES = """
saccade gallery
saccade gallery runs/edram-cluttered100 runs/draw-mnist --out my-gallery.md --json
"""


def gallery(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders; all that are done in runs/ and have pictures without."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The page; pictures go into a folder of its name beside it.")
    ] = Path("docs/gallery.md"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with the recipe, if it is your own.")
    ] = None,
) -> None:
    """Draw where systems look in images: paths of the gaze, canvases, windows.

    Each recipe says which inputs are worth showing; every one becomes a picture, the first of them
    a moving one, too. What the page already has of other recipes stays.
    """
    load_plugin(plugin)

    from saccade.zoo.recipes.gallery import has_pictures, write_gallery

    folders = runs or [path for path in finished_runs() if has_pictures(path)]
    if not folders:
        raise UsageError(
            f"no run in {RUNS}/ is done and has pictures",
            hint="`saccade train ram-mnist` makes one",
        )
    shown = write_gallery(out, folders)
    written = [str(out)]
    for each in shown:
        written += [str(path) for path in (*each.pictures, each.moving) if path is not None]
    typer.echo(json.dumps({"wrote": written}) if as_json else "\n".join(written))
