"""Write a page of figures: where trained systems attend, with their metrics.

    python tools/gallery.py
    python tools/gallery.py runs/edram-cluttered100 runs/draw-mnist --out my-gallery.md --json

Each recipe names the inputs to show (`Recipe.gallery`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from results import RUNS, finished_runs
from saccade.cli.main import Command
from saccade.cli.options import load_plugin
from saccade.errors import UsageError
from saccade.store.atomic import atomic_file
from saccade.trace.plot import draw_trace
from saccade.trace.plot_image import animate_image_trace, draw_image_trace
from saccade.trace.trace import Trace
from saccade.zoo.recipes.recipe import Recipe, find_recipe
from saccade.zoo.recipes.run import load_run
from saccade.zoo.training.run_folder import RunFolder
from script import run_script

EXAMPLES = """
python tools/gallery.py
python tools/gallery.py runs/edram-cluttered100 runs/draw-mnist --out my-gallery.md --json
"""
HEADING = """\
# Gallery

Where trained systems attend. On an image, each outline is a window that the system read (or wrote
to), numbered by step. Next to the image are the patches it saw, and below each patch the answer the
system would have given at that step. For memories, texts and recordings, darker cells have more
weight.
"""
START = "\n## "  # of the section of a recipe


class Shown(NamedTuple):
    """One run in the gallery."""

    recipe: Recipe
    metrics: dict[str, Any]
    pictures: tuple[Path, ...]
    moving: Path | None
    """An animation of the first one, if it is over an image."""


def gallery(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders. Default: all finished in runs/ with figures to show."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The page; figures go into the folder of the same name next to it.")
    ] = Path("docs/gallery.md"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file that registers your own recipe.")
    ] = None,
) -> None:
    """Draw where trained systems attend: glimpses, canvases, windows, attention weights.

    Each recipe names the inputs to show. Every input becomes a figure, and the first one also an
    animation. Sections of other recipes on the page are kept.
    """
    load_plugin(plugin)
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


def has_pictures(folder: Path) -> bool:
    """Whether the recipe of a run names inputs for the gallery."""
    name = RunFolder(folder).manifest.get("recipe")
    return bool(name and find_recipe(name).gallery)


def show_run(folder: Path, pictures: Path) -> Shown:
    """Draw the traces of a run for the inputs that its recipe names.

    Args:
        pictures: The output folder.
    """
    run = load_run(folder)
    recipe = run.recipe
    if not (recipe.can_trace and recipe.gallery):
        raise UsageError(
            f"{folder} is a run of {recipe.name}, which has no pictures for a gallery",
            hint="leave it out",
        )
    pictures.mkdir(parents=True, exist_ok=True)
    drawn, moving = [], None
    for given in recipe.gallery:
        for trace in run.trace(given):
            words = re.sub(r"\W+", "-", f"{recipe.name} {given[:40]} {trace.kind}").strip("-")
            path = pictures / f"{words}.png"
            drawn.append(path)
            if isinstance(trace, Trace):
                draw_trace(trace, path)
                continue
            draw_image_trace(trace, path)
            if moving is None and len(trace.steps) > 1:
                moving = path.with_suffix(".gif")
                animate_image_trace(trace, moving)
    return Shown(recipe, RunFolder(folder).metrics, tuple(drawn), moving)


def write_gallery(page: Path, runs: Sequence[Path]) -> tuple[Shown, ...]:
    """Write the page, and the figures into the folder of the same name next to it.

    Sections of other recipes on the page are kept.
    """
    shown = tuple(show_run(run, page.with_suffix("")) for run in runs)
    sections = _sections(page) | {each.recipe.name: _section(each, page.parent) for each in shown}
    text = "\n".join([HEADING, *(section for _, section in sorted(sections.items()))])
    with atomic_file(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return shown


def _sections(page: Path) -> dict[str, str]:
    """The sections of an existing page, by recipe."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    parts = text.split(START)[1:]
    return {part.partition("\n")[0]: f"{START.lstrip()}{part.rstrip()}\n" for part in parts}


def _section(shown: Shown, beside: Path) -> str:
    recipe, value = shown.recipe, shown.metrics.get("value")
    reached = "" if value is None else f" Result: {value:.4g} {recipe.metric}"
    if reached and recipe.published is not None:
        reached += f"; published: {recipe.published:g}"
    lines = [f"## {recipe.name}", "", f"{recipe.about}{reached + '.' if reached else ''}", ""]
    for path in (*shown.pictures, *filter(None, [shown.moving])):
        lines += [f"![{recipe.about}]({path.relative_to(beside).as_posix()})", ""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    return run_script("gallery", Command(gallery, EXAMPLES), arguments)


if __name__ == "__main__":
    sys.exit(main())
