"""`saccade read`: what the heads of a model do and know at one position of a text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from saccade.cli import options
from saccade.cli.text_input import MOST_BYTES, STDIN, read_text
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.readings.prompt import NumberedSpec, Prompt
    from saccade.interp.readings.reading import HeadReading, Order, Reading
    from saccade.interp.readings.readings import NumberedReading, Promoters

READ_EXAMPLES = """
saccade read "When Mary and John met, John gave a book to" --token Mary --against John
saccade read --prompts prompts.jsonl --token Paris
"""


@options.with_model_options
def read(
    text: Annotated[
        str | None, typer.Argument(help="The prompt; - reads it from stdin.", show_default=False)
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help='Read many prompts: a text file with one a line, or JSONL with {"prompt": ...} or '
            '{"messages": [...]}, and "token", "against", "position" where they differ; - for '
            "stdin. Shows which heads promote the token over all of them, or streams with --json, "
            "--csv."
        ),
    ] = None,
    chat: options.Chat = False,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    lens: options.LensName = None,
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
    against: options.Against = None,
    by: Annotated[
        Literal["effect", "token", "direct", "lens", "quality"] | None,
        typer.Option(
            help="Which heads come first: by the KL of their effect, the size of their effect on "
            "the token, the direct part of that, the KL of their lens from the baseline, or the "
            "quality of their lens. Default: effect, or token where --token is given."
        ),
    ] = None,
    ablate: options.Ablate = "mean",
    other: options.OtherPrompt = None,
    corpus: options.MeanText = None,
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
    as_json: options.Json = False,
    csv: Annotated[
        str | None,
        typer.Option(help="Write CSV to this file, one row a head of all heads; - for stdout."),
    ] = None,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary", help="With --prompts: the mean effect of each head on the token."
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML page with all heads to this file.")
    ] = None,
    edit: Annotated[
        Path | None, typer.Option(help="Apply this edit, written by `saccade edit`.")
    ] = None,
    plugin: options.LensPlugin = None,
) -> None:
    """Show what each attention head does to the next-token prediction, and what it knows.

    First the model's own prediction, then the heads in the order of their effect: how far the
    prediction changes when the head is replaced by its mean, which tokens it promotes and
    suppresses, where it attends, and, if lenses have been fitted, what its lens predicts. 29.0 is
    head 0 of layer 29.

    With --prompts, many prompts in batches: one line of JSON or the rows of CSV a prompt, in the
    order of the file, as soon as they are read.
    """
    options.refuse_trusted_stdin(
        text or "", prompts or "", trust_remote_code=model.trust_remote_code
    )
    _check_outputs(prompts, as_json=as_json, csv=csv, summary=summary, html=html)
    specs = _specs(text, prompts, chat=chat)  # before seconds are spent on opening the model
    options.load_plugin(plugin)

    from saccade.interp.effects.effects import EVERY_KIND, HEADS
    from saccade.interp.effects.replacement import replacement_of
    from saccade.interp.effects.target import several_tokens
    from saccade.interp.lenses.lens_set import lenses_if_fitted, load_lenses
    from saccade.interp.readings.prompt import PromptSpec
    from saccade.interp.readings.reader import ReadConfig, checked_top
    from saccade.interp.readings.readings import encode_numbered, promoters, read_each

    opened = model.open()
    _check_heads(opened, layer, head)
    lenses = lenses_if_fitted(lens, opened) if effects else load_lenses(lens, opened)
    for each in (token, against):
        if each is not None and (note := several_tokens(opened, each)):
            typer.echo(note, err=True)
    defaults = PromptSpec(token=token, against=against, position=position)
    for each in specs:  # all are checked before the first is read
        _note_injected(encode_numbered(opened, each, defaults), each.number)
    order = by or ("lens" if not effects else "effect" if token is None else "token")
    most = None if show_all or csv is not None else heads
    shown = _Shown(None if show_all else order, layer, head, most)
    with _edited(edit, opened):
        replacement = (
            replacement_of(opened, ablate, other=other, corpus=corpus) if effects else None
        )
        if summary or (prompts is not None and not as_json and csv is None):
            found = promoters(opened, specs, defaults=defaults, replacement=replacement)
            _print_promoters(found, heads, as_json=as_json)
            return
        config = ReadConfig(
            lenses=lenses,
            replacement=replacement,
            kinds=EVERY_KIND if mlp else HEADS,
            top=checked_top(top, opened),
            unembedding=unembedding,
        )
        readings = read_each(opened, specs, defaults=defaults, config=config)
        if csv is not None:
            _write_csv(readings, shown, csv)
        elif prompts is not None:
            _stream_json(readings, shown)
        else:
            _print_one(next(readings).reading, shown, as_json=as_json, html=html)


class _Shown(NamedTuple):
    """Which heads of a reading are shown."""

    order: Order | None
    """None for the order of depth."""
    layer: int | None
    head: int | None
    most: int | None

    def of(self, reading: Reading) -> Reading:
        """The reading with these heads alone."""
        every = (*reading.heads, *reading.others)
        chosen = [
            each
            for each in (every if self.order is None else reading.ranked(self.order))
            if self.layer in (None, each.layer) and self.head in (None, each.head)
        ]
        kept = [
            [each for each in chosen[: self.most] if (each.kind == "head") is is_head]
            for is_head in (True, False)
        ]
        return replace(reading, heads=tuple(kept[0]), others=tuple(kept[1]))


def _check_heads(opened: LanguageModel, layer: int | None, head: int | None) -> None:
    if layer is not None:
        opened.layer(layer)
    if head is not None:
        opened.check_head(layer if layer is not None else opened.layers[0].index, head)


def _note_injected(prompt: Prompt, number: int) -> None:
    if prompt.injected:
        typer.echo(
            f"note: the messages of prompt {number} hold special tokens, which the model reads as "
            f"such: {' '.join(prompt.injected)}",
            err=True,
        )


def _check_outputs(
    prompts: str | None, *, as_json: bool, csv: str | None, summary: bool, html: Path | None
) -> None:
    if as_json and csv is not None:
        raise UsageError("--json and --csv were both given", hint="choose one of them")
    if summary and csv is not None:
        raise UsageError("--summary and --csv were both given", hint="choose one of them")
    if summary and prompts is None:
        raise UsageError("--summary is about many prompts", hint="give a file with --prompts")
    if prompts is not None and html is not None:
        raise UsageError("--html shows one prompt", hint="leave out --prompts, or use --json")


def _specs(text: str | None, prompts: str | None, *, chat: bool) -> list[NumberedSpec]:
    """The prompts that were asked for: one, or those of a file."""
    if (text is None) == (prompts is None):
        raise UsageError(
            "expected either a prompt or --prompts FILE, got "
            + ("both" if text is not None else "neither"),
            hint="give one of them",
        )
    content = text or ""
    if text == STDIN:
        content = read_text(STDIN, what="the text").rstrip("\n")
    if prompts is not None:
        content = read_text(prompts, what="the prompts", most=MOST_BYTES)
    elif not content.strip():
        raise UsageError(f"the text is empty: {content!r}", hint="give at least one token")

    from saccade.interp.readings.prompt import NumberedSpec, PromptSpec, read_specs

    if prompts is None:
        found = [NumberedSpec(1, PromptSpec(prompt=content))]
    else:
        source = "stdin" if prompts == STDIN else prompts
        found = list(read_specs(content.split("\n"), source=source))
    return [NumberedSpec(n, spec.as_chat()) for n, spec in found] if chat else found


def _edited(path: Path | None, model: LanguageModel) -> AbstractContextManager[object]:
    if path is None:
        return nullcontext()
    from saccade.interp.studies.edit.edit_file import load_edit

    return load_edit(path, model).applied(model)


def _write_page(reading: Reading, path: Path) -> None:
    from saccade.viewer.export import show

    show(reading).save(path)
    typer.echo(f"wrote {path}", err=True)


def _stream_json(readings: Iterable[NumberedReading], shown: _Shown) -> None:
    with options.line_writer() as write:
        for number, reading in readings:
            kept = shown.of(reading).to_dict()
            write(json.dumps({"prompt": number, **kept}, ensure_ascii=False) + "\n")


def _write_csv(
    readings: Iterable[NumberedReading],
    shown: _Shown,
    path: str,
) -> None:
    from saccade.interp.readings.readings import csv_lines, reading_rows

    with options.line_writer(path) as write:
        write(csv_lines([], header=True))
        for number, reading in readings:
            write(csv_lines(reading_rows(shown.of(reading), number)))


def _print_promoters(found: Promoters, n_heads: int, *, as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from saccade.interp.readings.reading_table import dotted

    if as_json:
        typer.echo(json.dumps(found.to_dict(), ensure_ascii=False))
        return
    token = "the token of each prompt" if found.token is None else dotted(found.token)
    table = Table(box=None)
    for name in ("head", "mean effect", "95% interval", "promotes in"):
        table.add_column(name, justify="left" if name == "head" else "right")
    first, last = found.heads[:n_heads], found.heads[max(n_heads, len(found.heads) - n_heads) :]
    for at, each in enumerate((*first, *last)):
        reach = "" if each.low is None else f"{each.low:+.2f} to {each.high:+.2f}"
        share = f"{100 * each.share_positive:.0f}%"
        is_border = at == len(first) - 1 and bool(last)
        table.add_row(each.name, f"{each.mean:+.2f}", reach, share, end_section=is_border)
    console = Console(highlight=False)
    console.print(f"{found.model}: effects on {token}, {found.n_prompts} prompts")
    console.print(table)
    console.print(
        "\nmean effect: fall of the token's logit, above the mean logit, without the head;\n"
        "interval: of that mean over prompts; the last heads suppress the token",
        style="dim",
    )


def _print_one(reading: Reading, shown: _Shown, *, as_json: bool, html: Path | None) -> None:
    if html is not None:
        _write_page(reading, html)
    chosen = shown.of(reading)
    if as_json:
        typer.echo(chosen.to_json())
    else:
        _print_table(reading, [*chosen.heads, *chosen.others])


def _print_table(reading: Reading, heads: list[HeadReading]) -> None:
    from rich.console import Console

    from saccade.interp.readings.reading_table import reading_table

    Console(highlight=False).print(reading_table(reading, heads))
