"""`saccade guard fit`: learn what heads say over ordinary prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import ModelName, TrustRemoteCode, refuse_trusted_stdin
from saccade.cli.progress import showing_progress
from saccade.cli.text_input import MOST_BYTES, read_text
from saccade.store.schema import Seed

EXAMPLES = """
saccade guard fit
saccade guard fit ordinary.jsonl --out my-guard --false-alarms 0.01
"""


def run(
    prompts: Annotated[
        str | None,
        typer.Argument(
            help="A file with one ordinary prompt a line, plain or as JSON; - for stdin; prompts "
            "that come with saccade without it."
        ),
    ] = None,
    model: ModelName = None,
    trust_remote_code: TrustRemoteCode = False,
    lens: Annotated[
        str | None, typer.Option(help="A folder or a hub name; where `lens fit` puts it without.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the guard; in the cache without it.")
    ] = None,
    n: Annotated[
        int, typer.Option("--prompts", help="How many of the prompts that come with it.", min=20)
    ] = 800,
    false_alarms: Annotated[
        float, typer.Option(help="Share of ordinary prompts that may be reported.")
    ] = 0.05,
    window: Annotated[
        int, typer.Option(help="Tokens in a stretch; less than a sentence.", min=1)
    ] = 9,
    seed: Annotated[Seed, typer.Option(help="Of the requests that are put into prompts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit a guard on ordinary prompts only: no attack has to be known.

    It learns what every head says, as lenses tell, over stretches of such prompts, and over
    everyday requests that it puts into them itself; and where to set the alarm so that few ordinary
    prompts are reported.
    """
    refuse_trusted_stdin(prompts, trust_remote_code=trust_remote_code)

    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.interp.studies.guard.guard_file import default_guard_path
    from saccade.interp.studies.guard.guard_fit import GuardConfig, fit_guard
    from saccade.interp.studies.guard.guard_prompts import ordinary_prompts, prompts_of

    if prompts is None:
        texts = [each.text for each in ordinary_prompts("fit", n)]
    else:
        given = read_text(prompts, what="prompts", most=MOST_BYTES)
        texts = list(prompts_of(given.splitlines()))
    lenses = load_lenses(lens, open_model(model, trust_remote_code=trust_remote_code))
    config = GuardConfig(window=window, false_alarms=false_alarms, seed=seed)
    with showing_progress(is_quiet=as_json) as progress:
        guard = fit_guard(
            lenses, texts, config=config, source=prompts or "saccade", progress=progress
        )
    path = out or default_guard_path(lenses.model)
    guard.save(path)
    facts = {"guard": str(path), "n_prompts": len(texts), "threshold": guard.threshold}
    typer.echo(
        json.dumps(facts)
        if as_json
        else f"{path}: fitted on {len(texts)} prompts, alarm above {guard.threshold:.2f}"
    )
