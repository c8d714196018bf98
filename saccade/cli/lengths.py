"""`saccade lengths`: how translators stand with short and with long sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import load_plugin

if TYPE_CHECKING:
    from saccade.zoo.metrics.sequence_metrics import LengthBucket

LENGTHS_EXAMPLES = """
saccade lengths runs/seq2seq-multi30k runs/bahdanau-multi30k --png by-length.png
saccade lengths runs/transformer-multi30k --json
"""


def lengths(
    runs: Annotated[list[Path], typer.Argument(help="Folders of translators; a curve for each.")],
    png: Annotated[Path | None, typer.Option(help="Draw the curves into this file.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with data sets; SACCADE_DATA, or the cache, without."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with the recipe, if it is your own.")
    ] = None,
) -> None:
    """Show BLEU by the length of sentences, of runs that were evaluated.

    A translator that has to put a sentence into one vector falls off with its length; one with
    attention does not.
    """
    load_plugin(plugin)

    from saccade.zoo.metrics.sequence_metrics import save_bleu_by_length
    from saccade.zoo.recipes.by_length import length_curves

    curves = length_curves(runs, data)
    if png is not None:
        save_bleu_by_length(png, curves)
        typer.echo(f"wrote {png}", err=True)
    if as_json:
        named = {name: [each._asdict() for each in curve] for name, curve in curves.items()}
        typer.echo(json.dumps(named))
    else:
        typer.echo("\n".join(_table(curves)))


def _table(curves: Mapping[str, Sequence[LengthBucket]]) -> list[str]:
    """A line for each range of lengths, a column for each run."""
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
