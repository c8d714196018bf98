"""`saccade rescore`: let a second translator choose among the best translations of a first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import with_options_of
from saccade.cli.plugins import load_plugin
from saccade.zoo.recipes.options import RescoreOptions

EXAMPLES = """
saccade rescore runs/bahdanau-multi30k runs/seq2seq-multi30k
saccade rescore runs/seq2seq-multi30k runs/transformer-multi30k --n-best 50 --weight 1 --json
"""


@with_options_of(RescoreOptions)
def run(
    settings: RescoreOptions,
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run that translates.")],
    by: Annotated[Path, typer.Argument(metavar="BY", help="The run that chooses.")],
    data: Annotated[
        Path | None,
        typer.Option(help="The folder with data sets; SACCADE_DATA, or the cache, without."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with the recipe, if it is your own.")
    ] = None,
) -> None:
    """Translate the test sentences, and put each n-best list into a new order.

    The two runs may be of any two translators; what they share is text, not a vocabulary.
    """
    load_plugin(plugin)

    from saccade.zoo.recipes.opened import open_run
    from saccade.zoo.recipes.rescoring import evaluate_rescoring

    found = evaluate_rescoring(open_run(folder), open_run(by), data, options=settings)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"bleu {found['bleu']:.2f}, before {found['bleu_before']:.2f}")
