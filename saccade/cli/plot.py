"""`saccade plot`: draw a trace, or the log of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.errors import StoreError, UsageError

EXAMPLES = """
saccade plot my-trace --png gaze.png --gif gaze.gif
saccade plot runs/bahdanau-multi30k --png loss.png
"""


def run(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="What `saccade trace --out` wrote; or a run, for its curves."
        ),
    ],
    png: Annotated[
        Path | None, typer.Option(help="Where to draw it; the folder's name and .png without.")
    ] = None,
    gif: Annotated[
        Path | None, typer.Option(help="Draw it step by step, if it is over an image.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to point at into this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draw a trace as a picture and as a page, or the loss and the score of a run as a picture."""
    from saccade.zoo.training.run_folder import LOG

    _refuse_missing(folder)
    path = png or (None if html or gif else Path(f"{folder.name}.png"))
    if (folder / LOG).exists():
        if html is not None or gif is not None:
            raise UsageError("the curves of a run are a picture, no page", hint="give --png")
        _draw_run(folder, path or Path(f"{folder.name}.png"))
    else:
        _draw_trace(folder, path, gif=gif, html=html)
    written = [str(each) for each in (path, gif, html) if each is not None]
    typer.echo(json.dumps({"wrote": written}) if as_json else "\n".join(written))


def _refuse_missing(folder: Path) -> None:
    """Say the names of traces that begin so: a system with several kinds of attention has them."""
    if folder.exists():
        return
    near = sorted(each.name for each in folder.parent.glob(f"{folder.name}-*") if each.is_dir())
    hint = f"there are {', '.join(near)}" if near else "`saccade trace RUN INPUT --out` makes one"
    raise StoreError(f"no such folder: {folder}", hint=hint)


def _draw_trace(folder: Path, png: Path | None, *, gif: Path | None, html: Path | None) -> None:
    from saccade.cli.trace import animate, draw, write_page
    from saccade.trace.trace import load_trace

    trace = load_trace(folder)
    if png is not None:
        draw(trace, png)
    if gif is not None:
        animate(trace, gif)
    if html is not None:
        write_page([trace], html)


def _draw_run(folder: Path, path: Path) -> None:
    from saccade.zoo.training.log import read_log, save_curves
    from saccade.zoo.training.run_folder import RunFolder

    run = RunFolder(folder)
    lines = read_log(run.log)
    scores = [line["validation"] for line in lines if "validation" in line]
    watched = run.manifest.get("score") or (next(iter(scores[-1]), "") if scores else "")
    save_curves(path, lines, score=watched, title=folder.name)
