"""Show BLEU by sentence length of evaluated translators, as a table and as a figure.

    python tools/lengths.py runs/seq2seq-multi30k runs/bahdanau-multi30k --png by-length.png
    python tools/lengths.py runs/transformer-multi30k --json

Bahdanau et al., 2015, figure 2 (https://arxiv.org/abs/1409.0473).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.main import Command
from saccade.cli.options import load_plugin
from saccade.errors import MissingPackageError, RecipeError, UsageError
from saccade.store.atomic import atomic_file
from saccade.zoo.metrics.sequence_metrics import LengthBucket
from saccade.zoo.tasks.multi30k import read_multi30k
from saccade.zoo.training.run_folder import RunFolder
from script import run_script

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EXAMPLES = """
python tools/lengths.py runs/seq2seq-multi30k runs/bahdanau-multi30k --png by-length.png
python tools/lengths.py runs/transformer-multi30k --json
"""
NAME = re.compile(r"bleu_of_(\d+)_to_(\d+)_words")


def lengths(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of translators, one curve each.")],
    png: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with data sets. Default: SACCADE_DATA, or the cache."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file that registers your own recipe.")
    ] = None,
) -> None:
    """Show BLEU by sentence length of evaluated runs.

    BLEU falls with length if a translator encodes the sentence as one vector; with attention it
    does not.
    """
    load_plugin(plugin)
    curves = length_curves(runs, data)
    if png is not None:
        save_bleu_by_length(png, curves)
        typer.echo(f"wrote {png}", err=True)
    if as_json:
        named = {name: [each._asdict() for each in curve] for name, curve in curves.items()}
        typer.echo(json.dumps(named))
    else:
        typer.echo("\n".join(_table(curves)))


def length_curves(
    folders: Sequence[Path], data: Path | None = None
) -> dict[str, list[LengthBucket]]:
    """The curve of each run, by folder name, for `save_bleu_by_length`.

    Bahdanau et al., 2015, figure 2 (https://arxiv.org/abs/1409.0473): without attention, BLEU falls
    as sentences grow. Nothing is translated again; the data give the number of sentences of each
    length.
    """
    curves = {}
    for folder in folders:
        run = RunFolder(folder)
        settings = run.manifest.get("settings", {})
        if not {"source", "target"} <= set(settings):
            raise RecipeError(
                f"{folder} is a run of {run.manifest.get('recipe')}, which is no translator",
                hint="`saccade recipes` lists some",
            )
        test = read_multi30k(data, source=settings["source"], target=settings["target"]).test
        lengths = [len(text.split()) for text in test.source]
        curves[folder.name] = _buckets(folder, run.metrics, lengths)
    return curves


def _buckets(
    folder: Path, metrics: Mapping[str, Any], lengths: Sequence[int]
) -> list[LengthBucket]:
    buckets = []
    for name, score in metrics.get("test", {}).items():
        if score is not None and (match := NAME.fullmatch(name)):
            shortest, longest = map(int, match.groups())
            held = [n for n in lengths if shortest <= n <= longest]
            mean = sum(held) / max(1, len(held))
            buckets.append(LengthBucket(shortest, longest, mean, len(held), score))
    if not buckets:
        raise RecipeError(
            f"{folder} has no BLEU by sentence length yet", hint=f"saccade eval {folder}"
        )
    return sorted(buckets)


def _table(curves: Mapping[str, Sequence[LengthBucket]]) -> list[str]:
    """A row for each range of lengths, a column for each run."""
    spans = sorted({(each.shortest, each.longest) for curve in curves.values() for each in curve})
    head = ["words", "sentences", *curves]
    lines = [head]
    for span in spans:
        found = [
            next((each for each in curve if (each.shortest, each.longest) == span), None)
            for curve in curves.values()
        ]
        n = next(each.n_sentences for each in found if each is not None)
        scores = ["" if each is None else f"{each.bleu:.1f}" for each in found]
        lines.append([f"{span[0]}-{span[1]}", str(n), *scores])
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(word.rjust(width) for word, width in zip(line, widths, strict=True))
        for line in lines
    ]


def save_bleu_by_length(path: str | Path, curves: Mapping[str, Sequence[LengthBucket]]) -> None:
    """Write a PNG with a curve for each system."""
    figure = draw_bleu_by_length(curves)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


def draw_bleu_by_length(curves: Mapping[str, Sequence[LengthBucket]]) -> Figure:
    """The curves as a matplotlib figure, for notebooks."""
    if not any(curves.values()):
        raise UsageError("there is no curve to draw", hint="give the buckets of a system")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a curve needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)  # no window and no global state
    axes = figure.add_subplot()
    # Markers differ too, for colour-blind readers and for print.
    for (name, buckets), marker in zip(curves.items(), "os^Dv*xP" * len(curves), strict=False):
        x, y = [each.mean_length for each in buckets], [each.bleu for each in buckets]
        axes.plot(x, y, marker=marker, label=name)
    axes.set_xlabel("words in the source sentence")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the script and return its exit code."""
    return run_script("lengths", Command(lengths, EXAMPLES), arguments)


if __name__ == "__main__":
    sys.exit(main())
