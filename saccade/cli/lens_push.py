"""`saccade lens push`: share lenses on the Hugging Face hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
saccade lens push my-lens me/smollm2-lenses
saccade lens push my-lens me/smollm2-lenses --private --json
"""


def run(
    folder: Annotated[Path, typer.Argument(help="Lenses that `saccade lens fit` wrote.")],
    name: Annotated[str, typer.Argument(help="Where they go on the hub: user/name.")],
    private: Annotated[bool, typer.Option("--private", help="Only you can see them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put lenses on the Hugging Face hub; `saccade read --lens user/name` then finds them.

    You need to be logged in: `hf auth login`.
    """
    from saccade.interp.lenses.hub import push_lenses

    address = push_lenses(folder, name, private=private)
    typer.echo(json.dumps({"address": address}) if as_json else address)
