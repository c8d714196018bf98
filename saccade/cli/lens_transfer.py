"""`saccade lens transfer`: do lenses work where they were not fitted?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saccade.cli.options import ModelName, TrustRemoteCode
from saccade.cli.plugins import load_plugin
from saccade.cli.progress import showing_progress

if TYPE_CHECKING:
    from saccade.interp.studies.transfer import Moved, Shared, Transfer

EXAMPLES = """
saccade lens transfer --corpus wiki-test.txt --png transfer.png
saccade lens transfer --corpus wiki-test.txt --to my-fine-tuned-model --json
"""


def run(
    corpus: Annotated[
        str, typer.Option(help="Held-out text: a text or JSONL file, a folder of them, a dataset.")
    ],
    model: ModelName = None,
    trust_remote_code: TrustRemoteCode = False,
    lens: Annotated[
        str | None, typer.Option(help="A folder or a hub name; where `lens fit` puts it without.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="A changed version of the model to use the lenses on: name or folder."),
    ] = None,
    shared: Annotated[
        bool, typer.Option("--shared", help="Solve lenses that neighbouring layers share.")
    ] = False,
    layer: Annotated[
        list[int] | None, typer.Option(help="Only these layers; may be given again.")
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens in a window of text.")] = 256,
    tokens: Annotated[
        int, typer.Option(help="Look at no more than so many tokens of the text.")
    ] = 65_536,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    png: Annotated[
        Path | None, typer.Option(help="Write a heat map of the extra KL, layers x layers.")
    ] = None,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with a kind of lens of your own.")
    ] = None,
) -> None:
    """Use the lenses of each layer on every other, and show how much more KL they have there.

    With --to they are used on a changed version of the model instead, with --shared one lens is
    solved for the heads of several neighbouring layers.
    """
    load_plugin(plugin)

    from saccade.interp.heads.model import open_model
    from saccade.interp.lenses.corpus import read_corpus
    from saccade.interp.lenses.lens_set import load_lenses
    from saccade.interp.studies.transfer import share_lenses, transfer_matrix, transfer_to

    opened = open_model(model, trust_remote_code=trust_remote_code)
    for each in layer or ():
        opened.layer(each)
    lenses = load_lenses(lens, opened)
    text = read_corpus(corpus, opened, window=window, max_tokens=tokens)
    with showing_progress() as progress:
        if to is not None:
            found = transfer_to(
                lenses, open_model(to, trust_remote_code=trust_remote_code), text, progress=progress
            )
        elif shared:
            found = share_lenses(lenses, text, progress=progress)
        else:
            found = transfer_matrix(lenses, text, layers=layer, progress=progress)
            if png is not None:
                _draw(found, opened.name, png)
    _show(found, as_json=as_json)


def _draw(found: Transfer, name: str, png: Path) -> None:
    from saccade.interp.lenses.evaluation import Axes, save_heat_map

    save_heat_map(
        png,
        found.by_layer(),
        title=f"Lenses of one layer on the heads of another\n{name}",
        label=f"extra KL, nats a word; from {found.gain:.2f} on no better than a constant lens",
        axes=Axes(across="heads of layer", up="lenses of layer"),
        most=2 * found.gain,
    )
    typer.echo(f"wrote {png}", err=True)


def _show(found: Transfer | Moved | Shared, *, as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps(found.to_dict()))
        return
    from rich.console import Console

    Console(highlight=False).print(found.to_table())
