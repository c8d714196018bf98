"""`saccade demo`: fit lenses for the default model with no data at all, and read a sentence."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from saccade.cli.progress import showing_progress

EXAMPLES = """
saccade demo
saccade demo --prompt "My favourite dish is pasta with" --tokens 65536
"""

PROMPT = "The Eiffel Tower is located in the city of"
NEXT = """
What now?{first}
  saccade read "your own sentence"                  the same for another text
  saccade read "your own sentence" --html page.html all heads, as a page to click through
  saccade lens fit --corpus FILE                    better lenses: text of the kind you want to read
                                                    (a file or a folder; about three minutes, and
                                                    with --method polish about fifteen)
  saccade lens eval --corpus FILE --png gain.png    how good they are, head by head
"""


def run(
    prompt: Annotated[str, typer.Option(help="What to read.")] = PROMPT,
    tokens: Annotated[
        int, typer.Option(help="How many tokens the model writes to fit on.")
    ] = 32768,
    again: Annotated[bool, typer.Option("--again", help="Fit even if lenses are there.")] = False,
) -> None:
    """Fit lenses for the heads of the default model on text it writes itself; read a prompt."""
    typer.echo(
        "opening the default model (the first time it is unpacked: half a minute) ...", err=True
    )

    from rich.console import Console

    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.fit import fit_lenses
    from saccade.interp.lenses.fit_config import FitConfig
    from saccade.interp.lenses.lens_set import default_lens_path, load_lenses
    from saccade.interp.lenses.reading_table import reading_table

    model = open_model()
    model.encode(prompt)  # one that cannot be read is refused before minutes are spent on fitting
    path = default_lens_path(model)
    if again or not path.is_dir():
        typer.echo(
            f"fitting {model.n_heads} lenses on {tokens:,} tokens that {model.name} writes itself, "
            "so no data is needed ...",
            err=True,
        )
        with showing_progress() as progress:
            lenses = fit_lenses(
                model, config=FitConfig(tokens=tokens), progress=progress, save_to=path
            )
    else:
        typer.echo(f"using the lenses in {path} (--again fits new ones)", err=True)
        lenses = load_lenses(path, model)
    reading = lenses.read(prompt)
    Console(highlight=False).print(reading_table(reading, reading.ranked("says")[:8]))
    typer.echo(NEXT.format(first=_first()))


def _first() -> str:
    """How to get at the commands, where `make` has put them out of the shell's sight."""
    if shutil.which("saccade"):
        return ""
    scripts = Path(sys.executable).parent
    return f"\n  source {os.path.relpath(scripts / 'activate')}"
