"""`saccade generate`: continue a prompt, and tell which heads promote each token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli import options
from saccade.cli.text_input import STDIN, read_text
from saccade.errors import UsageError
from saccade.store.schema import Seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from saccade.interp.readings.generation import GeneratedToken, HeadShare

GENERATE_EXAMPLES = """
saccade generate "The Eiffel Tower is located in the city of" --tokens 10
saccade generate "Name three rivers." --chat --temperature 0.8 --top-p 0.9 --seed 3 --json
"""
MOST_SHOWN = 13  # columns of a token: a longer one is cut


@options.with_model_options
def generate(
    text: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt; - reads stdin.")],
    tokens: Annotated[int, typer.Option(help="How many tokens at most.", min=1)] = 20,
    temperature: Annotated[
        float, typer.Option(help="0 takes the likeliest token; 1 draws from the prediction.", min=0)
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(help="Draw from the smallest set of tokens with this probability.", max=1),
    ] = 1.0,
    seed: Annotated[Seed, typer.Option(help="Of the drawing.")] = 0,
    heads: Annotated[int, typer.Option(help="How many heads of each sign to show.", min=1)] = 3,
    chat: options.Chat = False,
    ablate: options.Ablate = "mean",
    other: options.OtherPrompt = None,
    corpus: options.MeanText = None,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    as_json: options.Json = False,
) -> None:
    """Continue a prompt, each token with the heads that promote it most and those that oppose it.

    A line a token as it is written: its probability, then heads with their effects: how far the
    token's logit, above the mean logit, falls when the head is replaced by its mean. The effects
    are measured for all heads in the same pass that writes the token. Stops at the model's end of
    text. With --json a line of JSON a token.
    """
    options.refuse_trusted_stdin(text, trust_remote_code=model.trust_remote_code)
    prompt = read_text(text, what="the text").rstrip("\n") if text == STDIN else text
    if not prompt.strip():
        raise UsageError(f"the text is empty: {prompt!r}", hint="give at least one token")

    from saccade.interp.effects.replacement import replacement_of
    from saccade.interp.readings.generation import generate as generated

    opened = model.open()
    written = generated(
        opened,
        [{"role": "user", "content": prompt}] if chat else prompt,
        tokens=tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        replacement=replacement_of(opened, ablate, other=other, corpus=corpus),
    )
    ids: list[int] = []
    with options.line_writer() as write:
        for each in written:
            if not each.is_end:
                ids.append(each.token.id)
            if as_json:
                write(json.dumps(each.to_dict(heads=heads), ensure_ascii=False) + "\n")
            else:
                write(_line(each, heads) + "\n")
        if not as_json and ids and opened.tokenizer is not None:
            # Decoded with the prompt: some tokenizers drop the space before the first token.
            before = [] if chat else opened.encode(prompt)[0].tolist()
            text = str(opened.tokenizer.decode([*before, *ids], skip_special_tokens=True))
            write(f"\n{text}\n")


def _line(each: GeneratedToken, n_heads: int) -> str:
    """One token with its heads: fits 80 columns for three heads."""
    from saccade.interp.readings.reading_table import dotted

    shown = dotted(each.token.text)
    if len(shown) > MOST_SHOWN:
        shown = shown[: MOST_SHOWN - 1] + "…"
    promoted, opposed = _heads(each.promoted_by(n_heads)), _heads(each.opposed_by(n_heads))
    width = 10 * n_heads - 1
    return f"{shown:<{MOST_SHOWN}}{each.token.value:5.0%}  {promoted:<{width}}  {opposed}".rstrip()


def _heads(heads: Sequence[HeadShare]) -> str:
    return " ".join(f"{each.name:>4} {each.effect:+.1f}" for each in heads)
