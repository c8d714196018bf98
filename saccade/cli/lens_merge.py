"""`saccade lens merge`: one set of lenses from several that were fitted on different text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.options import ModelName, TrustRemoteCode

EXAMPLES = """
saccade lens merge shard-1 shard-2 --out merged
saccade lens merge monday tuesday wednesday --out week --json
"""


def run(
    folders: Annotated[list[Path], typer.Argument(help="Lenses fitted apart, for one model.")],
    out: Annotated[Path, typer.Option(help="Where to put the merged lenses.")],
    model: ModelName = None,
    trust_remote_code: TrustRemoteCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Merge lenses of the closed form that were fitted on different text.

    The statistics they were solved from add up, so the result is what one fit over all of the text
    would have given.
    """
    from saccade.cli.lens_fit import show_fitted
    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.fit import merge_lenses
    from saccade.interp.lenses.lens_set import load_lenses

    opened = open_model(model, trust_remote_code=trust_remote_code)
    merged = merge_lenses([load_lenses(folder, opened) for folder in folders])
    merged.save(out)
    show_fitted(merged, out, as_json=as_json)
