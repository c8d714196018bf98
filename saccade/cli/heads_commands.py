"""`saccade heads`: rank heads for one prediction, and score their roles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli import options
from saccade.errors import UsageError
from saccade.store.schema import Seed

if TYPE_CHECKING:
    from rich.table import Table

    from saccade.interp.studies.head_rank import RankedHead, Ranking
    from saccade.interp.studies.roles.role import Roles


HEADS_RANK_EXAMPLES = """
saccade heads rank "The Eiffel Tower is located in the city of" --token Paris --against London
saccade heads rank "When Mary and John met, John gave a book to" --token Mary --self-repair --json
"""


@options.with_model_options
def heads_rank(
    text: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt.")],
    token: Annotated[
        str, typer.Option(help="The next token to explain; of a word of several tokens, the first.")
    ],
    against: options.Against = None,
    ablate: options.Ablate = "mean",
    other: options.OtherPrompt = None,
    corpus: options.MeanText = None,
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
    heads: options.HeadsShown = 12,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    as_json: options.JsonOfHeads = False,
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
saccade heads roles --role induction --role successor --json
"""


@options.with_model_options
def heads_roles(
    role: Annotated[
        list[str] | None,
        typer.Option(help="A role, by its name in the table; repeatable. Default: all."),
    ] = None,
    heads: Annotated[int, typer.Option(help="Number of heads to show per role.", min=1)] = 6,
    seed: Annotated[Seed, typer.Option(help="Seed of texts and intervals.")] = 0,
    data: options.DataFolder = None,
    model: options.ModelOptions = options.DEFAULT_OPTIONS,
    as_json: options.JsonOfHeads = False,
    png: Annotated[
        Path | None, typer.Option(help="Write one heat map per role to this file.")
    ] = None,
) -> None:
    """Score every head for known roles, each by its published test, with a 95 % interval.

    By attention: induction, previous, duplicate (Olsson et al., 2022), sink (Gu et al., 2024) and
    retrieval (Wu et al., 2024). By what a head writes: copy, name-mover (Wang et al., 2022) and
    successor (Gould et al., 2023). By exact effects: name-mover-effect, name-suppressor,
    function-vector (Todd et al., 2024) and knowledge. The last two need data sets; without --role,
    roles that cannot be measured are left out.
    """
    from saccade.interp.studies.roles.roles import checked_roles, find_roles

    asked = checked_roles(role) if role else None
    with options.showing_progress() as progress:
        found = find_roles(model.open(), roles=asked, seed=seed, data=data, progress=progress)
    if png is not None and found.found:
        from saccade.interp.lenses.evaluation import save_heat_maps

        save_heat_maps(png, found.scores, title=f"Roles of the heads of {found.model}")
        typer.echo(f"wrote {png}", err=True)
    if as_json:
        print_json(found.to_dict())
    else:
        _show_heads_roles(found, heads)
    for name, why in found.left_out.items():
        typer.echo(f"left out: {name}: {why}", err=True)


def _show_heads_roles(roles: Roles, n_heads: int) -> None:
    for role, found in roles.found.items():
        typer.echo(f"{role}: {roles.test_of(role)}")
        for layer, head, score in roles.ranked(role, n_heads):
            low, high = float(found.low[layer][head]), float(found.high[layer][head])
            beside = "".join(
                f"  {name} {float(rows[layer][head]):.3f}" for name, rows in found.beside.items()
            )
            typer.echo(f"{f'{layer}.{head}':>7} {score:6.3f}  [{low:.3f}, {high:.3f}]{beside}")
        for note in found.notes:
            typer.echo(f"  {note}")
        if found.check is not None:
            typer.echo(f"  {_checked(found.check)}")


def _checked(check: Mapping[str, Any]) -> str:
    """The ablation of knowledge retrievers on relations that they were not found on."""

    def interval(name: str) -> str:
        return "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**check[name])

    text = (
        f"without {', '.join(check['heads'])}, found on other relations, {check['n_facts']} facts "
        f"lose {interval('fall')}, at a KL of {interval('kl')}"
    )
    if "difference" not in check:
        return text
    return (
        f"{text}; without {check['n_controls']} sets of other heads of these layers "
        f"{interval('control_fall')}, at {interval('control_kl')}"
    )


def print_json(found: dict[str, Any]) -> None:
    """Print one line of JSON."""
    import json

    typer.echo(json.dumps(found, ensure_ascii=False))
