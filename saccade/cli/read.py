"""`saccade read`: what the heads of a model say at one position of a text."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saccade.cli.model_options import DEFAULT_OPTIONS, ModelOptions, with_model_options
from saccade.cli.options import (
    Json,
    LensName,
    LensPlugin,
    load_plugin,
    refuse_trusted_stdin,
)
from saccade.cli.text_input import STDIN, read_text
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.reading import HeadReading, Reading

READ_EXAMPLES = """
saccade read "The Eiffel Tower is located in the city of"
saccade read - --layer 29 --json < prompt.txt
"""


@with_model_options
def read(
    text: Annotated[str, typer.Argument(help="The prompt; - reads it from stdin.")],
    model: ModelOptions = DEFAULT_OPTIONS,
    lens: LensName = None,
    layer: Annotated[int | None, typer.Option(help="Only heads of this layer.")] = None,
    head: Annotated[int | None, typer.Option(help="Only heads of this number.")] = None,
    position: Annotated[
        int, typer.Option(help="Position of the token to read at; negative counts from the end.")
    ] = -1,
    top: Annotated[int, typer.Option(help="Tokens per head.")] = 10,
    by: Annotated[
        Literal["lens", "direct", "quality"],
        typer.Option(
            help="Which heads come first: by the KL of their lens from the baseline, by what they "
            "add directly to the predicted token's logit, or by the quality of their lens."
        ),
    ] = "lens",
    heads: Annotated[int, typer.Option(help="How many heads to show.", min=1)] = 8,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show every head, ordered by layer.")
    ] = False,
    unembedding: Annotated[
        bool, typer.Option("--unembedding", help="Show the tokens of the raw unembedding, too.")
    ] = False,
    as_json: Json = False,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with all heads to this file.")
    ] = None,
    edit: Annotated[
        Path | None, typer.Option(help="Apply this edit, written by `saccade edit`.")
    ] = None,
    plugin: LensPlugin = None,
) -> None:
    """Show what the lens of each attention head predicts for the next token.

    First the model's own prediction, then the heads: the tokens that each lens makes likelier than
    the baseline, the tokens it predicts, those it suppresses, and where the head attends. 29.0 is
    head 0 of layer 29.
    """
    refuse_trusted_stdin(text, trust_remote_code=model.trust_remote_code)
    prompt = read_text(text, what="the text").rstrip("\n") if text == STDIN else text
    if not prompt.strip():  # found out before seconds are spent on opening the model
        raise UsageError(f"the text is empty: {prompt!r}", hint="give at least one token")
    load_plugin(plugin)

    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.interp.lenses.reading import read

    opened = model.open()
    if layer is not None:
        opened.layer(layer)
    if head is not None:
        opened.check_head(layer if layer is not None else opened.layers[0].index, head)
    lenses = load_lenses(lens, opened)
    with _edited(edit, opened):
        reading = read(lenses, prompt, position=position, top=top, unembedding=unembedding)
    chosen = [
        each
        for each in (reading.heads if show_all else reading.ranked(by))
        if layer in (None, each.layer) and head in (None, each.head)
    ]
    shown = chosen if show_all else chosen[:heads]
    if html is not None:
        _write_page(reading, html)
    if as_json:
        _print_json(reading, shown)
    else:
        _print_table(reading, shown)


def _edited(path: Path | None, model: LanguageModel) -> AbstractContextManager[object]:
    if path is None:
        return nullcontext()
    from saccade.interp.studies.edit.edit_file import load_edit

    return load_edit(path, model).applied(model)


def _write_page(reading: Reading, path: Path) -> None:
    from saccade.viewer.export import show

    show(reading).save(path)
    typer.echo(f"wrote {path}", err=True)


def _print_json(reading: Reading, heads: list[HeadReading]) -> None:
    from dataclasses import replace

    typer.echo(replace(reading, heads=tuple(heads)).to_json())


def _print_table(reading: Reading, heads: list[HeadReading]) -> None:
    from rich.console import Console

    from saccade.interp.lenses.reading_table import reading_table

    Console(highlight=False).print(reading_table(reading, heads))
