"""`saccade translate`, `sample` and `rescore`: use a trained run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli import options
from saccade.cli.text_input import MOST_BYTES, STDIN, read_text
from saccade.cli.trace_commands import note_unknown
from saccade.errors import UsageError
from saccade.zoo.recipes.recipe import RescoreOptions, SampleOptions, Translated, TranslateOptions

TOGETHER = 64  # sentences in a batch

TRANSLATE_EXAMPLES = """
saccade translate runs/bahdanau-multi30k "Ein Mann steht auf einer Leiter."
saccade translate runs/transformer-multi30k - --beam 1 --json < sentences.txt
"""


@options.with_options_of(TranslateOptions)
def translate(
    settings: TranslateOptions,
    folder: options.RunFolder,
    text: Annotated[str, typer.Argument(help="A sentence; - takes one from each line of stdin.")],
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Another run of the same recipe, for an ensemble. Can be repeated."
        ),
    ] = None,
    data: options.DataFolder = None,
    as_json: options.Json = False,
    plugin: options.RecipePlugin = None,
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
    options.load_plugin(plugin)

    from saccade.zoo.recipes.run import load_run

    opened = load_run([folder, *(also or [])])
    sentences = opened.named_files(sentences)
    found: list[Translated] = []
    with options.showing_progress(is_quiet=len(sentences) <= TOGETHER) as progress:
        for start in range(0, len(sentences), TOGETHER):
            progress("translating", start, len(sentences))
            found += opened.translate(sentences[start : start + TOGETHER], settings, data=data)
    unknown = note_unknown(opened, sentences, data=data)
    if as_json:
        rows = [
            {"source": sentence, **each._asdict(), "unknown": words}
            for sentence, each, words in zip(sentences, found, unknown, strict=True)
        ]
        typer.echo(json.dumps(rows, ensure_ascii=False))
    else:
        for each in found:
            typer.echo(each.text)


SAMPLE_EXAMPLES = """
saccade sample runs/charlm-shakespeare --prompt "ROMEO:" --temperature 0.8
saccade sample runs/charlm-shakespeare --length 100 --seed 7 --json
"""


@options.with_options_of(SampleOptions)
def sample(
    settings: SampleOptions,
    folder: options.RunFolder,
    as_json: options.Json = False,
    plugin: options.RecipePlugin = None,
) -> None:
    """Sample text from a trained system; the same seed gives the same text."""
    options.load_plugin(plugin)

    from saccade.zoo.recipes.run import load_run

    opened = load_run(folder)
    text = opened.sample(settings)
    (unknown,) = note_unknown(opened, [settings.prompt])
    result = {"text": text, "unknown": unknown}
    typer.echo(json.dumps(result, ensure_ascii=False) if as_json else text)


RESCORE_EXAMPLES = """
saccade rescore runs/bahdanau-multi30k runs/seq2seq-multi30k
saccade rescore runs/seq2seq-multi30k runs/transformer-multi30k --n-best 50 --weight 1 --json
"""


@options.with_options_of(RescoreOptions)
def rescore(
    settings: RescoreOptions,
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The run that translates.")],
    by: Annotated[Path, typer.Argument(metavar="BY", help="The run that rescores.")],
    data: options.DataFolder = None,
    as_json: options.Json = False,
    plugin: options.RecipePlugin = None,
) -> None:
    """Translate the test sentences, and rescore each n-best list with a second run.

    The two runs may be of any two translators; they need not share a vocabulary.
    """
    options.load_plugin(plugin)

    from saccade.zoo.recipes.rescoring import evaluate_rescoring
    from saccade.zoo.recipes.run import load_run

    found = evaluate_rescoring(load_run(folder), load_run(by), data, options=settings)
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"bleu {found['bleu']:.2f}, before {found['bleu_before']:.2f}")
