"""`saccade heads`: rank heads for one prediction, and score their roles."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.model_options import DEFAULT_OPTIONS, ModelOptions, with_model_options
from saccade.cli.options import Ablate, MeanText, OtherPrompt
from saccade.errors import UsageError
from saccade.store.schema import Seed

if TYPE_CHECKING:
    from rich.table import Table

    from saccade.interp.studies.head_rank import RankedHead, Ranking
    from saccade.interp.studies.roles import Roles


HEADS_RANK_EXAMPLES = """
saccade heads rank "The Eiffel Tower is located in the city of" --token Paris --against London
saccade heads rank "When Mary and John met, John gave a book to" --token Mary --self-repair --json
"""


@with_model_options
def heads_rank(
    text: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt.")],
    token: Annotated[
        str, typer.Option(help="The next token to explain; of a word of several tokens, the first.")
    ],
    against: Annotated[
        str | None,
        typer.Option(help="Token whose logit is subtracted. Default: the mean of all tokens."),
    ] = None,
    ablate: Ablate = "mean",
    other: OtherPrompt = None,
    corpus: MeanText = None,
    shows_repair: Annotated[
        bool,
        typer.Option(
            "--self-repair",
            help="Also show what later layers repair of the direct loss.",
        ),
    ] = False,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--everywhere",
            help="Also ablate each head at every token, and rank by that effect.",
        ),
    ] = False,
    heads: Annotated[int, typer.Option(help="Number of heads to show.", min=1)] = 12,
    model: ModelOptions = DEFAULT_OPTIONS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every head.")] = False,
    png: Annotated[
        Path | None, typer.Option(help="Write a heat map of the effects, layers x heads.")
    ] = None,
) -> None:
    """Rank the heads of a model by their effect on a token.

    Effect is how far the token's logit falls when the head is ablated at the last token; direct is
    the part of it that reaches the logits without later layers; KL is the change of the whole
    prediction; with --everywhere also the fall when it is ablated at every token. With
    --self-repair: how much of the direct loss later layers repair, by heads, MLPs and the norm.
    """
    for each in (text, token, *([] if other is None else [other])):
        if not each.strip():
            raise UsageError(f"the text is empty: {each!r}", hint="give at least one token")

    from saccade.interp.effects.replacement import Replacement, replacement_of
    from saccade.interp.effects.target import find_target, several_tokens
    from saccade.interp.studies.head_rank import rank_heads, self_repair

    opened = model.open()
    target = find_target(opened, text, token, against)
    for each in (token, against):
        if each is not None and (note := several_tokens(opened, each)):
            typer.echo(note, err=True)
    replacement = replacement_of(opened, ablate, other=other, corpus=corpus)
    if everywhere and other is not None:  # one value for each token of the prompt
        length = opened.encode(text).shape[1]
        replacement = Replacement.other_prompt(opened, opened.encode(other), length=length)
    ranking = rank_heads(opened, text, target, replacement=replacement, everywhere=everywhere)
    if shows_repair:
        found = self_repair(opened, text, target, replacement=replacement)
        ranking = ranking.with_repair({site: each.to_dict() for site, each in found.items()})
    if png is not None:
        _draw(ranking, png)
    if as_json:
        typer.echo(ranking.to_json())
    else:
        _show(ranking, heads)


def _draw(ranking: Ranking, png: Path) -> None:
    from saccade.interp.lenses.evaluation import save_heat_map

    title = f"Effect of ablating each head on {ranking.token!r}\n{ranking.model}"
    save_heat_map(png, ranking.by_layer(), title=title, label="fall of the logit")
    typer.echo(f"wrote {png}", err=True)


def _show(ranking: Ranking, n_heads: int) -> None:
    from rich.console import Console

    from saccade.interp.readings.reading_table import dotted

    console = Console(highlight=False)
    against = "the mean of all tokens" if ranking.against is None else dotted(ranking.against)
    console.print(
        f"{ranking.model}: {dotted(ranking.token)} has {100 * ranking.probability:.1f}%, its logit "
        f"is {ranking.score:+.2f} above {against}"
    )
    console.print(
        _table(ranking.ranked()[:n_heads], has_repair=ranking.heads[0].repair is not None)
    )
    agreement = ranking.agreement()
    if agreement is not None:
        console.print(f"correlation of direct and effect over all heads: {agreement:.2f}")


def _table(heads: tuple[RankedHead, ...], *, has_repair: bool) -> Table:
    from rich.table import Table

    caption = "right of |: what later layers repair of the direct loss"
    table = Table(box=None, pad_edge=False, caption=caption if has_repair else None)
    for name in ("head", "KL", "direct", "effect"):
        table.add_column(name, justify="right")
    has_everywhere = heads[0].everywhere is not None
    if has_everywhere:
        table.add_column("everywhere", justify="right")
    names = ("share", "heads", "feed_forward", "norm") if has_repair else ()
    titles = ("| repaired", "by heads", "by MLPs", "by norm")
    for title, _ in zip(titles, names, strict=False):
        table.add_column(title, justify="right")
    for head in heads:
        direct = "-" if head.direct is None else f"{head.direct:+.2f}"
        found = head.repair or {}
        cells = [_cell(name, found.get(name)) for name in names]
        if head.everywhere is not None:
            cells.insert(0, f"{head.everywhere:+.2f}")
        table.add_row(head.name, f"{head.kl:.3f}", direct, f"{head.effect:+.2f}", *cells)
    return table


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value:.0f}%" if name == "share" else f"{value:+.2f}"


HEADS_ROLES_EXAMPLES = """
saccade heads roles --png roles.png
saccade heads roles --role induction --role previous --json
"""


@with_model_options
def heads_roles(
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="induction, previous, duplicate, name-mover or copy; repeatable. Default: all."
        ),
    ] = None,
    heads: Annotated[int, typer.Option(help="Number of heads to show per role.", min=1)] = 6,
    seed: Annotated[Seed, typer.Option(help="Seed of the generated texts.")] = 0,
    model: ModelOptions = DEFAULT_OPTIONS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every head.")] = False,
    png: Annotated[
        Path | None, typer.Option(help="Write one heat map per role to this file.")
    ] = None,
) -> None:
    """Score every head for known roles, on generated text.

    Induction heads attend to the token after an earlier occurrence of a token, previous-token heads
    to the token before, duplicate-token heads to an earlier occurrence of the token itself: the
    score is that share of attention. Name movers: logits added to the name that occurs once, times
    the attention to it. Copy: how often the token a head attends to is among its top five tokens.
    """
    from saccade.interp.studies.roles import ROLES, checked_roles, find_roles

    asked = checked_roles(role) if role else ROLES
    found = find_roles(model.open(), roles=asked, seed=seed)
    if png is not None:
        from saccade.interp.lenses.evaluation import save_heat_maps

        save_heat_maps(png, found.scores, title=f"Roles of the heads of {found.model}")
        typer.echo(f"wrote {png}", err=True)
    if as_json:
        typer.echo(found.to_json())
    else:
        _show_heads_roles(found, heads)


def _show_heads_roles(roles: Roles, n_heads: int) -> None:
    for role in roles.scores:
        best = roles.ranked(role, n_heads)
        shown = (f"{f'{layer}.{head}':>5} {score:.2f}" for layer, head, score in best)
        typer.echo(f"{role:<10} {'  '.join(shown)}")
