"""`saccade guard eval`: how well a guard does on attacks it has not seen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import ModelName, TrustRemoteCode
from saccade.cli.progress import showing_progress
from saccade.store.schema import Seed

EXAMPLES = """
saccade guard eval
saccade guard eval --guard my-guard --prompts 100 --json
"""


def run(
    guard: Annotated[
        Path | None, typer.Option(help="A folder; where `guard fit` puts it without.")
    ] = None,
    model: ModelName = None,
    trust_remote_code: TrustRemoteCode = False,
    lens: Annotated[
        str | None, typer.Option(help="A folder or a hub name; where `lens fit` puts it without.")
    ] = None,
    n: Annotated[
        int, typer.Option("--prompts", help="Prompts of each kind in each part.", min=10)
    ] = 300,
    seed: Annotated[Seed, typer.Option(help="Of the prompts that are made.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON to this file too.")] = None,
) -> None:
    """Try a guard on ordinary and injected prompts whose templates and texts it has not seen.

    Shown beside it: the prompt's perplexity under the model, a bag of words that was trained with
    attacks of other templates, one that was trained on what the guard is fitted on, and the length
    of the prompt, which is matched and tells nothing.
    """
    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.interp.studies.guard.guard_eval import evaluate_guard
    from saccade.interp.studies.guard.guard_file import load_guard

    lenses = load_lenses(lens, open_model(model, trust_remote_code=trust_remote_code))
    loaded = load_guard(guard, lenses)
    with showing_progress(is_quiet=as_json) as progress:
        found = evaluate_guard(loaded, n=n, seed=seed, progress=progress)
    if out is not None:
        from saccade.store.atomic import atomic_file

        with atomic_file(out) as temporary:
            temporary.write_text(found.to_json() + "\n", encoding="utf-8")
        typer.echo(f"wrote {out}", err=True)
    if as_json:
        typer.echo(found.to_json())
        return
    from rich.console import Console

    Console(highlight=False).print(found.to_table())
