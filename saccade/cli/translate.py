"""`saccade translate`: sentences through a trained translator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import with_options_of
from saccade.cli.plugins import load_plugin
from saccade.cli.text_input import MOST_BYTES, STDIN, note_unknown, read_text
from saccade.errors import UsageError
from saccade.zoo.recipes.options import TranslateOptions

EXAMPLES = """
saccade translate runs/bahdanau-multi30k "Ein Mann steht auf einer Leiter."
saccade translate runs/transformer-multi30k - --beam 1 --json < sentences.txt
"""


@with_options_of(TranslateOptions)
def run(
    settings: TranslateOptions,
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")],
    text: Annotated[str, typer.Argument(help="A sentence; - takes one from each line of stdin.")],
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Another run of the same recipe: an ensemble. Again and again."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with the recipe, if it is your own.")
    ] = None,
) -> None:
    """Translate a sentence, or every line of stdin."""
    is_many = text == STDIN
    sentences = (
        read_text(text, what="sentences", most=MOST_BYTES).splitlines() if is_many else [text]
    )
    for number, sentence in enumerate(sentences, start=1):
        if not sentence.strip():
            which = f"line {number}" if is_many else "the sentence"
            raise UsageError(f"{which} is empty", hint="give at least one word")
    load_plugin(plugin)

    from saccade.zoo.recipes.opened import open_run

    opened = open_run([folder, *(also or [])])
    if opened.recipe.translate is None:
        raise UsageError(
            f"{opened.recipe.name} is no translator", hint="`saccade recipes` lists some"
        )
    found = opened.recipe.translate(opened, sentences, settings) if sentences else []
    unknown = note_unknown(opened, sentences)
    if as_json:
        told = [
            {"source": sentence, **each._asdict(), "unknown": words}
            for sentence, each, words in zip(sentences, found, unknown, strict=True)
        ]
        typer.echo(json.dumps(told, ensure_ascii=False))
    else:
        for each in found:
            typer.echo(each.text)
