"""`saccade find-bias`: which heads favour some words after some prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from saccade.cli import options
from saccade.cli.text_input import MOST_BYTES, read_text
from saccade.store.schema import Seed

if TYPE_CHECKING:
    from saccade.interp.studies.bias.bias_words import Suite
    from saccade.interp.studies.bias.report import Bias

FIND_BIAS_EXAMPLES = """
saccade find-bias --suite occupations --png bias.png
saccade find-bias --words she,her,hers --against he,him,his --prompts prompts.txt --json
"""


@options.with_model_options
def find_bias(
    suite: Annotated[
        str,
        typer.Option(
            help="Words and prompts that come with saccade: pronouns, occupations or "
            "nationalities. The options below override its parts."
        ),
    ] = "pronouns",
    words: Annotated[
        str | None,
        typer.Option(help="Comma-separated words, a file with one per line, or a list by name."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Words whose mass is subtracted; none for none.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="A file with one prompt per line; - for stdin. A line with {one|other} is a pair."
        ),
    ] = None,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    lens: options.LensName = None,
    ablate: Annotated[
        int, typer.Option(help="Number of heads to ablate, the clearest, one at a time.", min=0)
    ] = 12,
    by: Annotated[
        Literal["mean", "zero"],
        typer.Option(help="Replace an ablated head by its mean over the prompts, or by zero."),
    ] = "mean",
    draws: Annotated[
        int, typer.Option(help="Number of bootstrap draws.", min=100, max=100_000)
    ] = 2000,
    seed: Annotated[Seed, typer.Option(help="Seed of those draws.")] = 0,
    heads: options.HeadsShown = 12,
    as_json: options.JsonOfHeads = False,
    png: Annotated[
        Path | None, typer.Option(help="Write a heat map of the differences, layers x heads.")
    ] = None,
    out: options.JsonFile = None,
) -> None:
    """Find the heads whose lens gives more to some words after one prompt than after its partner.

    For each head: the mass of its lens on the words (minus that on the words against them) after
    the first and the second prompts, the difference with an interval, and how much of the model's
    own difference disappears when the head is ablated. The mass on a word of several tokens is the
    lens's probability of the first times the model's probability of the rest. The heads that change
    the difference are then ablated together: the caption says what they carry, and what silencing
    them costs on definitional words (king, queen, mother) and in perplexity.
    """
    options.refuse_trusted_stdin(prompts, trust_remote_code=model.trust_remote_code)

    from saccade.interp.studies.bias.bias_words import find_suite, find_words, split_pairs

    asked = find_suite(suite)
    named = find_words(words) if words is not None else list(asked.words)
    other = _against(against, words, asked)
    given = None if prompts is None else read_text(prompts, what="prompts", most=MOST_BYTES)
    pairs = split_pairs(asked.prompts if given is None else given.splitlines())

    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.interp.studies.bias.measure import BiasConfig, find_bias

    lenses = load_lenses(lens, model.open())
    config = BiasConfig(ablate=ablate, by=by, draws=draws, seed=seed)
    with options.showing_progress() as progress:
        found = find_bias(lenses, named, pairs, against=other, config=config, progress=progress)
    if found.in_pieces:
        n, shown = len(found.in_pieces), ", ".join(found.in_pieces[:5])
        typer.echo(
            f"note: {n} of {len(found.words) + len(found.against)} words are several tokens "
            f"({shown}{', ...' if n > 5 else ''}): the lens's mass is on the first, times the "
            "model's probability of the rest",
            err=True,
        )
    _write(found, png, out)
    _show(found, as_json=as_json, heads=heads)


def _against(against: str | None, words: str | None, suite: Suite) -> list[str]:
    """Words given with --words have none against them unless --against is given."""
    from saccade.interp.studies.bias.bias_words import find_words

    if against == "none" or (against is None and words is not None):
        return []
    return find_words(against) if against is not None else list(suite.against)


def _write(found: Bias, png: Path | None, out: Path | None) -> None:
    from saccade.interp.lenses.evaluation import save_heat_map
    from saccade.store.atomic import atomic_file

    if png is not None:
        title = f"{found.model}\n{found.title}"
        save_heat_map(png, found.by_layer(), title=title, label="difference in probability")
        typer.echo(f"wrote {png}", err=True)
    if out is not None:
        with atomic_file(out) as temporary:
            temporary.write_text(found.to_json() + "\n", encoding="utf-8")
        typer.echo(f"wrote {out}", err=True)


def _show(found: Bias, *, as_json: bool, heads: int) -> None:
    if as_json:
        typer.echo(found.to_json())
        return
    from rich.console import Console

    Console(highlight=False).print(found.to_table(heads=heads))
