"""`saccade trace` and `saccade plot`: where a trained system looks, printed and plotted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli import options
from saccade.cli.text_input import STDIN, read_text
from saccade.errors import StoreError, UsageError

if TYPE_CHECKING:
    from saccade.trace.trace import ImageTrace, Trace
    from saccade.zoo.recipes.run import TrainedRun


TRACE_EXAMPLES = """
saccade trace runs/transformer-multi30k "Ein Mann steht auf einer Leiter." --html heads.html
saccade trace runs/ram-mnist 7 --png gaze.png --gif gaze.gif --json
"""
TOP = 3  # positions named for each step
NAMED = 5  # unknown words in a note


def trace(
    folder: options.RunFolder,
    text: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="The input of the system; - is stdin. For images: a number, or a file.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Save the trace in this folder, for `saccade plot`.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a plot to this PNG file.")] = None,
    gif: options.GifFile = None,
    html: options.HtmlFile = None,
    data: options.DataFolder = None,
    as_json: options.Json = False,
    plugin: options.RecipePlugin = None,
) -> None:
    """Show where attention goes: the positions with the largest weights at each step.

    A system with several kinds of attention gives a trace for each, and the kind is added to the
    file names.
    """
    given = read_text(text, what="the input").rstrip("\n") if text == STDIN else text
    if not given.strip():
        raise UsageError(f"the input is empty: {given!r}", hint="give at least one word")
    options.load_plugin(plugin)

    from saccade.trace.trace import save_trace
    from saccade.zoo.recipes.run import load_run

    opened = load_run(folder)
    if text != STDIN:
        (given,) = opened.named_files([given])
    traces = opened.trace(given, data=data)
    (unknown,) = note_unknown(opened, [given], data=data)
    for trace, path in _named(traces, out):
        save_trace(path, trace)
        typer.echo(f"wrote {path}", err=True)
    for trace, path in _named(traces, png):
        draw(trace, path)
        typer.echo(f"wrote {path}", err=True)
    for trace, path in _named(traces, gif):
        animate(trace, path)
        typer.echo(f"wrote {path}", err=True)
    if html is not None:
        write_page(traces, html)
    if as_json:
        rows = [{**trace.to_dict(), "unknown": unknown} for trace in traces]
        typer.echo(json.dumps(rows, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(_lines(trace) for trace in traces))


def note_unknown(
    run: TrainedRun, texts: Sequence[str], *, data: Path | None = None
) -> list[list[str]]:
    """The words of each text that a run does not know; also printed on stderr."""
    unknown = [run.unknown_words(text, data=data) for text in texts]
    if every := list(dict.fromkeys(word for words in unknown for word in words)):
        shown = ", ".join(map(repr, every[:NAMED])) + ", ..." * (len(every) > NAMED)
        typer.echo(f"note: {len(every)} unknown, read as <unk>: {shown}", err=True)
    return unknown


def draw(trace: Trace | ImageTrace, path: Path) -> None:
    """Plot a trace of either kind."""
    from saccade.trace.plot import draw_trace
    from saccade.trace.plot_image import draw_image_trace
    from saccade.trace.trace import Trace

    if isinstance(trace, Trace):
        draw_trace(trace, path)
    else:
        draw_image_trace(trace, path)


def animate(trace: Trace | ImageTrace, path: Path) -> None:
    """Write the animation of a trace over an image."""
    from saccade.trace.plot_image import animate_image_trace
    from saccade.trace.trace import Trace

    if isinstance(trace, Trace):
        raise UsageError(
            f"a trace of kind {trace.kind!r} is a matrix and has no animation", hint="give --png"
        )
    animate_image_trace(trace, path)


def write_page(traces: Sequence[Trace | ImageTrace], path: Path) -> None:
    """Write traces as one page."""
    from saccade.viewer.export import show

    show(traces).save(path)
    typer.echo(f"wrote {path}", err=True)


def _named(
    traces: Sequence[Trace | ImageTrace], path: Path | None
) -> list[tuple[Trace | ImageTrace, Path]]:
    """The path for each trace: the given one, or with several traces one for each kind."""
    if path is None:
        return []
    if not path.name:
        raise UsageError(f"{path} names no file", hint="give the name of a file to write")
    if len(traces) == 1:
        return [(traces[0], path)]
    return [(each, path.with_name(f"{path.stem}-{each.kind}{path.suffix}")) for each in traces]


def _lines(trace: Trace | ImageTrace) -> str:
    from saccade.trace.trace import Trace

    width = max(len(step) for step in trace.steps)
    lines = [f"{trace.kind}: {trace.title}" if trace.title else trace.kind]
    for number, step in enumerate(trace.steps):
        if not isinstance(trace, Trace):
            lines.append(f"  {step:<{width}}{_where(trace, number)}")
            continue
        looks = trace.most(number, top=TOP)
        shown = "  ".join(f"{look.label} {look.weight:.0%}" for look in looks)
        lines.append(f"  {step:<{width}}  {shown}")
    return "\n".join(lines)


def _where(trace: ImageTrace, step: int) -> str:
    """The centre of a step's window; for weights over cells, the position of the largest."""
    if trace.heat is not None:
        _, n_rows, n_columns = trace.heat.shape
        row, column = divmod(int(trace.heat[step].argmax()), n_columns)
        share = trace.heat[step].max().item()
        x, y = (2 * column + 1) / n_columns - 1, (2 * row + 1) / n_rows - 1
        return f"  most at x {x:+.2f} y {y:+.2f}  {share:.0%}"
    if not trace.has_path:
        return ""
    x, y = trace.centres[step].tolist()
    return f"  at x {x:+.2f} y {y:+.2f}"


PLOT_EXAMPLES = """
saccade plot my-trace --png gaze.png --gif gaze.gif
saccade plot runs/bahdanau-multi30k --png loss.png
"""


def plot(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="The output of `saccade trace --out`; or a run, for its curves."
        ),
    ],
    png: Annotated[
        Path | None, typer.Option(help="The PNG file; default: the folder's name with .png.")
    ] = None,
    gif: options.GifFile = None,
    html: options.HtmlFile = None,
    as_json: options.Json = False,
) -> None:
    """Plot a trace as an image or a page, or the loss and the score of a run as an image."""
    from saccade.zoo.training.run_folder import LOG

    _refuse_missing(folder)
    path = png or (None if html or gif else Path(f"{folder.name}.png"))
    if (folder / LOG).exists():
        if html is not None or gif is not None:
            raise UsageError("the curves of a run are an image, not a page", hint="give --png")
        _draw_run(folder, path or Path(f"{folder.name}.png"))
    else:
        _draw_trace(folder, path, gif=gif, html=html)
    written = [str(each) for each in (path, gif, html) if each is not None]
    typer.echo(json.dumps({"wrote": written}) if as_json else "\n".join(written))


def _refuse_missing(folder: Path) -> None:
    """Suggest traces with this prefix: a system with several kinds of attention has them."""
    if folder.exists():
        return
    near = sorted(each.name for each in folder.parent.glob(f"{folder.name}-*") if each.is_dir())
    hint = f"there are {', '.join(near)}" if near else "`saccade trace RUN INPUT --out` makes one"
    raise StoreError(f"no such folder: {folder}", hint=hint)


def _draw_trace(folder: Path, png: Path | None, *, gif: Path | None, html: Path | None) -> None:
    from saccade.trace.trace import load_trace

    trace = load_trace(folder)
    if png is not None:
        draw(trace, png)
    if gif is not None:
        animate(trace, gif)
    if html is not None:
        write_page([trace], html)


def _draw_run(folder: Path, path: Path) -> None:
    from saccade.zoo.training.run_folder import RunFolder, read_log, save_curves

    run = RunFolder(folder)
    lines = read_log(run.log)
    scores = [line["validation"] for line in lines if "validation" in line]
    watched = run.manifest.get("score") or (next(iter(scores[-1]), "") if scores else "")
    save_curves(path, lines, score=watched, title=folder.name)
