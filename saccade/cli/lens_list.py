"""`saccade lens list`: the lenses that are on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

EXAMPLES = """
saccade lens list
saccade lens list --json | jq '.[].model'
"""


def run(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the lenses in the cache, where `saccade read` looks for them."""
    from saccade.errors import SaccadeError
    from saccade.interp.lenses.lens_set import read_made
    from saccade.store.paths import cache_dir

    found = []
    folder = cache_dir() / "lenses"
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith("."):
            continue
        try:
            found.append({"path": str(path), **asdict(read_made(path))})
        except SaccadeError as error:
            found.append({"path": str(path), "error": str(error)})
    if as_json:
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    if not found:
        typer.echo(f"no lenses in {folder}; `saccade lens fit` makes some", err=True)
    for each in found:
        what = each.get("error") or (
            f"{each['model']}: {each['kind']} lenses by {each['method']}, "
            f"{each['n_tokens']:,} tokens of {each['corpus']}"
        )
        typer.echo(f"{what}\n  {each['path']}")
