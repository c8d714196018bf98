"""`saccade heads flow`, `paths` and `edge`: which head feeds which, and why it looks at a token."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer
from annotated_types import Ge, Le

from saccade.cli.heads_commands import print_json
from saccade.cli.options import (
    DEFAULT_OPTIONS,
    Against,
    Json,
    ModelOptions,
    with_model_options,
)
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.interp.effects.edge import EdgeScore
    from saccade.interp.effects.graph import Flow
    from saccade.interp.effects.positions import HeadAt
    from saccade.interp.effects.target import Target
    from saccade.interp.heads.model import LanguageModel

Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt.")]
Token = Annotated[
    str, typer.Option(help="The next token to explain; of a word of several tokens, the first.")
]
HEADS_FLOW_EXAMPLES = """
saccade heads flow "When Mary and John went out, John gave a book to" --token Mary --against John
saccade heads flow "The Eiffel Tower is located in the city of" --token Paris --threshold 0.1 --json
"""


@with_model_options
def heads_flow(
    text: Prompt,
    token: Token,
    against: Against = None,
    threshold: Annotated[
        float,
        Ge(0),
        Le(1),
        typer.Option(
            help="Leave out edges below this share of the largest edge to the prediction."
        ),
    ] = 0.2,
    model: ModelOptions = DEFAULT_OPTIONS,
    as_json: Json = False,
) -> None:
    """Show the graph from tokens through heads to one prediction.

    Each head at a position, what it gives to the token's logit, and through which later heads: at
    first order, with the measured effect beside it. 9.6@4 is head 6 of layer 9 at position 4.
    """
    opened, target = _opened(text, token, against, model)

    from saccade.interp.effects.graph import LEAST_SHARE, find_flow
    from saccade.interp.effects.replacement import Replacement

    flow = find_flow(
        opened,
        opened.encode(text),
        target,
        replacement=Replacement.usual(opened),
        threshold=min(threshold, LEAST_SHARE) or LEAST_SHARE,
    ).pruned(threshold)
    if as_json:
        print_json(flow.to_dict())
    else:
        _show_flow(flow)


def _opened(
    text: str, token: str, against: str | None, model: ModelOptions
) -> tuple[LanguageModel, Target]:
    for each in (text, token):
        if not each.strip():
            raise UsageError(f"the text is empty: {each!r}", hint="give at least one token")

    from saccade.interp.effects.target import find_target, several_tokens

    opened = model.open()
    target = find_target(opened, text, token, against)
    for each in (token, against):
        if each is not None and (note := several_tokens(opened, each)):
            typer.echo(note, err=True)
    return opened, target


def _show_flow(flow: Flow) -> None:
    against = "the mean logit" if flow.against is None else repr(flow.against)
    typer.echo(f"{flow.model}: {flow.token!r} against {against}: {flow.score:+.2f}")
    typer.echo(
        f"{'head':>10} {'measured':>8} {'first':>6} {'direct':>6} {'else':>6}  "
        "reads; gives to later heads"
    )
    for node in sorted(flow.nodes, key=lambda each: -abs(each.attribution)):
        from_tokens = [e for e in flow.edges if e.to == node.name and e.source[0] == "t"]
        to_heads = [e for e in flow.edges if e.source == node.name and e.to != "prediction"]
        parts = [
            f"{flow.tokens[int(e.source[6:])]!r}@{e.source[6:]} {e.value:+.2f}"
            for e in from_tokens[:2]
        ]
        gives = [f"{e.to} {e.value:+.2f}" for e in to_heads[:3]]
        typer.echo(
            f"{node.name:>10} {node.exact:+8.2f} {node.attribution:+6.2f} {node.direct:+6.2f} "
            f"{node.elsewhere:+6.2f}  {', '.join(parts) or '-'}; {', '.join(gives) or '-'}"
        )
    agreement = flow.agreement
    if agreement is not None:
        typer.echo(f"correlation of first order and measured over these heads: {agreement:.2f}")
    typer.echo(f"{100 * flow.kept:.0f}% of what heads give directly is shown")
    typer.echo(
        "measured: fall of the score without the head; first: the same at first order = direct + "
        "later heads + else"
    )


HEADS_PATHS_EXAMPLES = """
saccade heads paths "When Mary and John went out, John gave a book to" --token Mary --to 23.3
saccade heads paths "The Eiffel Tower is located in the city of" --token Paris --to 29.1 --json
"""


@with_model_options
def heads_paths(
    text: Prompt,
    token: Token,
    to: Annotated[str, typer.Option(help="The head to go through, such as 9.6.")],
    against: Against = None,
    position: Annotated[
        int, typer.Option(help="Position of that head; negative counts from the end.")
    ] = -1,
    heads: Annotated[int, typer.Option(help="Number of earlier heads to measure.", min=1)] = 12,
    model: ModelOptions = DEFAULT_OPTIONS,
    as_json: Json = False,
) -> None:
    """Rank what earlier heads give to a prediction through one head.

    All heads at all positions are ranked at first order; the first ones are then measured by path
    patching (Wang et al., 2022): the earlier head is replaced, the heads between are kept.
    """
    layer, head = _head(to)
    opened, target = _opened(text, token, against, model)
    opened.layer(layer)
    opened.check_head(layer, head)
    if layer == opened.layers[0].index:
        raise UsageError(
            f"{to} is in the first layer: no head comes before it", hint="give a later head"
        )

    from saccade.interp.effects.paths import PathGradients, path_effects
    from saccade.interp.effects.positions import HeadAt, position_in
    from saccade.interp.effects.replacement import Replacement

    ids = opened.encode(text)
    place = position_in(position, ids.shape[1])
    replacement = Replacement.usual(opened)
    paths = PathGradients.record(opened, ids, target, replacement=replacement)
    found = {
        HeadAt(layer, head, (at,)): value
        for layer, values in paths.through(layer, head, place).items()
        for at, row in enumerate(values.tolist())
        for head, value in enumerate(row)
    }
    first = sorted(found, key=lambda each: -abs(found[each]))[:heads]
    through = HeadAt(layer, head, (place,))
    exact = path_effects(opened, ids, first, through, replacement=replacement, target=target)
    rows = [
        (each, found[each], exact[each].on_token, exact[each].kl)
        for each in sorted(first, key=lambda each: -abs(exact[each].on_token))
    ]
    if as_json:
        whole = float(paths.attribution[layer][place, head])
        print_json(_paths_json(opened, ids[0].tolist(), through, whole, rows))
        return
    typer.echo(f"through {layer}.{head} at position {place}")
    typer.echo(f"{'head':>10} {'measured':>8} {'first':>6}  at the token")
    shown = opened.tokens(ids[0])
    for each, value, measured, _ in rows:
        (at,) = each.positions or (0,)
        name = f"{each.layer}.{each.head}@{at}"
        typer.echo(f"{name:>10} {measured:+8.3f} {value:+6.3f}  {shown[at]!r}")


def _head(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text)
    if match is None:
        raise UsageError(
            f"expected a head such as 9.6, got {text!r}", hint="give LAYER.HEAD, counted from 0"
        )
    return int(match[1]), int(match[2])


def _paths_json(
    model: LanguageModel,
    ids: list[int],
    through: HeadAt,
    attribution: float,
    rows: list[tuple[HeadAt, float, float, float]],
) -> dict[str, Any]:
    from saccade.interp.lenses.top_tokens import plain

    return {
        "model": model.name,
        "tokens": model.tokens(ids),
        "through": {**through._asdict(), "attribution": plain(attribution)},
        "heads": [
            {
                **each._asdict(),
                "first_order": plain(value),
                "effect": plain(measured),
                "kl": plain(kl),
            }
            for each, value, measured, kl in rows
        ],
    }


HEADS_EDGE_EXAMPLES = """
saccade heads edge "When Mary and John went out, John gave a book to" --head 23.0 --key 1
saccade heads edge "When Mary and John went out, John gave it to" --head 23.0 --key 1 --against 3
"""


@with_model_options
def heads_edge(
    text: Prompt,
    head: Annotated[str, typer.Option(help="The head, such as 9.8.")],
    key: Annotated[int, typer.Option(help="Position of the key; negative counts from the end.")],
    query: Annotated[
        int, typer.Option(help="Position of the query; negative counts from the end.")
    ] = -1,
    against: Annotated[
        int | None, typer.Option(help="Position of another key, whose score is subtracted.")
    ] = None,
    parts: Annotated[int, typer.Option(help="Number of parts and pairs to show.", min=1)] = 8,
    model: ModelOptions = DEFAULT_OPTIONS,
    as_json: Json = False,
) -> None:
    """Show why a head looks at one token: its score, split over what query and key are made of.

    Parts are the embedding, earlier heads (5.3), feed-forward parts and biases, with all norms as
    they are in the run; the split is exact. With --against: why at this token rather than that one.
    """
    site = _head(head)
    if not text.strip():
        raise UsageError(f"the text is empty: {text!r}", hint="give at least one token")

    from saccade.interp.effects.edge import edge_score

    opened = model.open()
    opened.layer(site[0])
    found = edge_score(opened, opened.encode(text), site, query=query, key=key, against=against)
    if as_json:
        print_json(found.to_dict())
    else:
        _show_edge(found, parts)


def _show_edge(edge: EdgeScore, n: int) -> None:
    def at(position: int) -> str:
        return f"{edge.tokens[position]!r}@{position}"

    other = ""
    if edge.against is not None:
        other = f" above {at(edge.against)} ({edge.against_weight:.1%})"
    typer.echo(
        f"{edge.layer}.{edge.head} from {at(edge.query)} to {at(edge.key)} ({edge.weight:.1%})"
        f"{other}: score {edge.score:+.2f}"
    )
    typer.echo(f"{'parts of the query':>24}  {'parts of the key':>24}")
    sides = [*zip(edge.query_parts[:n], edge.key_parts[:n], strict=True)]
    for row in sides:
        typer.echo("  ".join(f"{each.name:>16} {each.value:+7.2f}" for each in row))
    rest = [edge.score - sum(row[side].value for row in sides) for side in (0, 1)]
    typer.echo("  ".join(f"{'all others':>16} {value:+7.2f}" for value in rest))
    typer.echo("largest pairs, query x key")
    for pair in edge.pairs(n):
        typer.echo(f"{pair.query:>16} x {pair.key:<16} {pair.value:+7.2f}")
    typer.echo(
        f"distance {edge.query - edge.key}: {edge.by_position:+.2f} by rotary position alone, from "
        f"the mean over distances 0 to {edge.query}"
    )
