"""`saccade lens fit`: fit a lens for every attention head of a model."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import ModelName, TrustRemoteCode, with_options_of
from saccade.cli.plugins import load_plugin
from saccade.cli.progress import showing_progress
from saccade.interp.lenses.fit_config import FitConfig

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses

EXAMPLES = """
saccade lens fit --corpus books/ --method polish
torchrun --nproc-per-node=2 -m saccade lens fit --corpus wiki.txt --tokens 1000000 --out wiki-lens
"""


@with_options_of(FitConfig)
def run(
    settings: FitConfig,
    corpus: Annotated[
        list[str] | None,
        typer.Option(
            help="A text or JSONL file (.gz too), a folder of them, or a dataset of the hub; may "
            "be given again. Without it: self, text that the model writes."
        ),
    ] = None,
    model: ModelName = None,
    trust_remote_code: TrustRemoteCode = False,
    device_map: Annotated[
        str | None,
        typer.Option(help="Spread a large model over devices, as accelerate does: auto."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to put the lenses; where `saccade read` looks without."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with a lens or an objective of your own.")
    ] = None,
) -> None:
    """Fit a lens for every attention head: what does it write, in words of the vocabulary?

    One pass over the text serves all layers and heads. A fit that is stopped goes on where it was
    when it is started again with the same options. Started by torchrun, the processes share the
    text.
    """
    load_plugin(plugin)

    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.fit import SELF, fit_lenses
    from saccade.interp.lenses.gather import FitInterrupted
    from saccade.interp.lenses.lens_set import default_lens_path

    is_first = int(os.environ.get("RANK", "0")) == 0
    opened = open_model(model, device_map=device_map, trust_remote_code=trust_remote_code)
    path = out or default_lens_path(opened)
    text = corpus or [SELF]
    try:
        with showing_progress(is_quiet=not is_first) as progress:
            lenses = fit_lenses(
                opened,
                text[0] if len(text) == 1 else text,
                settings,
                progress=progress,
                save_to=path,
            )
    except FitInterrupted as saved:
        if is_first:
            typer.echo(str(saved), err=True)
        raise
    if is_first:
        show_fitted(lenses, path, as_json=as_json)


def show_fitted(lenses: Lenses, path: Path, *, as_json: bool) -> None:
    """Say what was made, how good it is on its own held-out text, and where it lies."""
    if as_json:
        found = {"path": str(path), "made": asdict(lenses.made), "quality": lenses.quality}
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    made = lenses.made
    typer.echo(
        f"{len(lenses.sites)} {made.kind} lenses for {made.model}, by {made.method}, "
        f"from {made.n_tokens:,} tokens of {made.corpus}"
    )
    if lenses.quality:
        gains = {
            (layer, head): lenses.quality_of(layer, head)["gain"] for layer, head in lenses.sites
        }
        kl = [lenses.quality_of(layer, head)["kl"] for layer, head in lenses.sites]
        best = sorted(gains, key=lambda site: -gains[site])[:5]
        mean, gain = sum(kl) / len(kl), sum(gains.values()) / len(gains)
        typer.echo(
            f"held-out KL to the model, mean over heads: {mean:.3f} nats "
            f"(constant lens {mean + gain:.3f}, gain {gain:.3f})"
        )
        named = ", ".join(f"{layer}.{head} ({gains[layer, head]:.2f})" for layer, head in best)
        typer.echo(f"most is heard from heads {named}")
    typer.echo(f"in {path}")
