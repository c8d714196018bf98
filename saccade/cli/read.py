"""`saccade read`: what the heads of a model do and know at one position of a text."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saccade.cli.model_options import DEFAULT_OPTIONS, ModelOptions, with_model_options
from saccade.cli.options import (
    Ablate,
    Json,
    LensName,
    LensPlugin,
    MeanText,
    OtherPrompt,
    load_plugin,
    refuse_trusted_stdin,
)
from saccade.cli.text_input import STDIN, read_text
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.readings.reading import HeadReading, Reading

READ_EXAMPLES = """
saccade read "The Eiffel Tower is located in the city of"
saccade read "When Mary and John met, John gave a book to" --token Mary --against John
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
    token: Annotated[
        str | None,
        typer.Option(
            help="Measure effects on this next token. Default: the likeliest. Of a word of several "
            "tokens, the first is taken, with a note."
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Token whose logit is subtracted. Default: the mean of all tokens."),
    ] = None,
    by: Annotated[
        Literal["effect", "token", "direct", "lens", "quality"] | None,
        typer.Option(
            help="Which heads come first: by the KL of their effect, the size of their effect on "
            "the token, the direct part of that, the KL of their lens from the baseline, or the "
            "quality of their lens. Default: effect, or token where --token is given."
        ),
    ] = None,
    ablate: Ablate = "mean",
    other: OtherPrompt = None,
    corpus: MeanText = None,
    mlp: Annotated[
        bool,
        typer.Option("--mlp", help="Also show feed-forward parts and whole attention layers."),
    ] = False,
    effects: Annotated[
        bool, typer.Option("--effects/--no-effects", help="Measure effects, or read lenses only.")
    ] = True,
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
    """Show what each attention head does to the next-token prediction, and what it knows.

    First the model's own prediction, then the heads in the order of their effect: how far the
    prediction changes when the head is replaced by its mean, which tokens it promotes and
    suppresses, where it attends, and, if lenses have been fitted, what its lens predicts. 29.0 is
    head 0 of layer 29.
    """
    refuse_trusted_stdin(text, trust_remote_code=model.trust_remote_code)
    prompt = read_text(text, what="the text").rstrip("\n") if text == STDIN else text
    if not prompt.strip():  # found out before seconds are spent on opening the model
        raise UsageError(f"the text is empty: {prompt!r}", hint="give at least one token")
    load_plugin(plugin)

    from saccade.interp.effects.effects import EVERY_KIND, HEADS
    from saccade.interp.effects.replacement import replacement_of
    from saccade.interp.effects.target import several_tokens
    from saccade.interp.lenses.lens_set import lenses_if_fitted, load_lenses
    from saccade.interp.readings.reader import read

    opened = model.open()
    if layer is not None:
        opened.layer(layer)
    if head is not None:
        opened.check_head(layer if layer is not None else opened.layers[0].index, head)
    lenses = lenses_if_fitted(lens, opened) if effects else load_lenses(lens, opened)
    for each in (token, against):
        if each is not None and (note := several_tokens(opened, each)):
            typer.echo(note, err=True)
    with _edited(edit, opened):
        reading = read(
            opened,
            prompt,
            lenses=lenses,
            effects=effects,
            position=position,
            token=token,
            against=against,
            replacement=replacement_of(opened, ablate, other=other, corpus=corpus)
            if effects
            else None,
            kinds=EVERY_KIND if mlp else HEADS,
            top=top,
            unembedding=unembedding,
        )
    order = by or ("lens" if not effects else "effect" if token is None else "token")
    chosen = [
        each
        for each in ((*reading.heads, *reading.others) if show_all else reading.ranked(order))
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

    kept = [
        [each for each in heads if (each.kind == "head") is is_head] for is_head in (True, False)
    ]
    typer.echo(replace(reading, heads=tuple(kept[0]), others=tuple(kept[1])).to_json())


def _print_table(reading: Reading, heads: list[HeadReading]) -> None:
    from rich.console import Console

    from saccade.interp.readings.reading_table import reading_table

    Console(highlight=False).print(reading_table(reading, heads))
