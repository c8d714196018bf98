"""`saccade heads roles`: what each head is there for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import ModelName, TrustRemoteCode
from saccade.store.schema import Seed

if TYPE_CHECKING:
    from saccade.interp.studies.roles import Roles

EXAMPLES = """
saccade heads roles --png roles.png
saccade heads roles --role induction --role previous --json
"""


def run(
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="induction, previous, duplicate, name-mover or copy; may be given again. All "
            "without it."
        ),
    ] = None,
    heads: Annotated[int, typer.Option(help="How many heads to show a role.", min=1)] = 6,
    seed: Annotated[Seed, typer.Option(help="Of the generated texts.")] = 0,
    model: ModelName = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every head.")] = False,
    png: Annotated[
        Path | None, typer.Option(help="Write a heat map a role, side by side, into this file.")
    ] = None,
) -> None:
    """Score every head for the roles that are known of heads, on generated text.

    Induction heads look at what came after an earlier appearance of a token, previous-token heads
    at the token before, duplicate-token heads at the token itself where it stood earlier: the share
    of their attention that does so. Name movers add the name said once, in logits, times how much
    they look at it. Copy: how often a head has a token among its first five words that it looks at.
    """
    from saccade.interp.heads.model import open_model
    from saccade.interp.studies.roles import ROLES, checked_roles, find_roles

    asked = checked_roles(role) if role else ROLES
    found = find_roles(
        open_model(model, trust_remote_code=trust_remote_code), roles=asked, seed=seed
    )
    if png is not None:
        from saccade.interp.lenses.evaluation import save_heat_maps

        save_heat_maps(png, found.scores, title=f"Roles of the heads of {found.model}")
        typer.echo(f"wrote {png}", err=True)
    if as_json:
        typer.echo(found.to_json())
    else:
        _show(found, heads)


def _show(roles: Roles, n_heads: int) -> None:
    for role in roles.scores:
        best = roles.ranked(role, n_heads)
        shown = (f"{f'{layer}.{head}':>5} {score:.2f}" for layer, head, score in best)
        typer.echo(f"{role:<10} {'  '.join(shown)}")
