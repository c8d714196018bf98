"""`saccade sample`: text drawn from a trained language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import with_options_of
from saccade.cli.plugins import load_plugin
from saccade.cli.text_input import note_unknown
from saccade.errors import UsageError
from saccade.zoo.recipes.options import SampleOptions

EXAMPLES = """
saccade sample runs/charlm-shakespeare --prompt "ROMEO:" --temperature 0.8
saccade sample runs/charlm-shakespeare --length 100 --seed 7 --json
"""


@with_options_of(SampleOptions)
def run(
    settings: SampleOptions,
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with the recipe, if it is your own.")
    ] = None,
) -> None:
    """Draw text from a trained system; the same seed draws the same text."""
    load_plugin(plugin)

    from saccade.zoo.recipes.opened import open_run

    opened = open_run(folder)
    if opened.recipe.sample is None:
        raise UsageError(
            f"{opened.recipe.name} does not write text", hint="`saccade recipes` lists others"
        )
    text = opened.recipe.sample(opened, settings)
    (unknown,) = note_unknown(opened, [settings.prompt])
    told = {"text": text, "unknown": unknown}
    typer.echo(json.dumps(told, ensure_ascii=False) if as_json else text)
