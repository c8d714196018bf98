"""`saccade view`: a web page that shows every head and every trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saccade.cli.options import (
    DEFAULT_OPTIONS,
    ModelOptions,
    load_plugin,
    refuse_trusted_stdin,
    with_model_options,
)
from saccade.cli.text_input import read_text
from saccade.errors import MissingPackageError, StoreError, UsageError
from saccade.store.schema import parse_json

if TYPE_CHECKING:
    from saccade.viewer.worker import ViewConfig

VIEW_EXAMPLES = """
saccade view runs/
saccade view --print reading --ask '{"text": "The cat sat on the"}'
"""
RUNS = Path("runs")


@with_model_options
def view(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Runs, saved traces, or folders of them. Default: runs/."),
    ] = None,
    model: ModelOptions = DEFAULT_OPTIONS,
    lens: Annotated[
        list[str] | None,
        typer.Option(
            help="A folder or a hub name; repeatable. Default: where `lens fit` writes it."
        ),
    ] = None,
    atlas: Annotated[
        Path | None,
        typer.Option(help="The folder of an atlas. Default: where `atlas build` writes it."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder with data sets, for traces that need one.")
    ] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Show runs and traces only.")
    ] = False,
    host: Annotated[
        str,
        typer.Option(help="Any address but loopback is open to other machines; it needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None, typer.Option(help="Default: the first free one.", min=0, max=65535)
    ] = None,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address.")
    ] = False,
    no_token: Annotated[
        bool,
        typer.Option("--no-token", help="Let every user of this machine in, without a token."),
    ] = False,
    route: Annotated[
        str | None,
        typer.Option("--print", help="Print the answer of a route as JSON; start no server."),
    ] = None,
    ask: Annotated[
        str, typer.Option(help="The question: JSON, a file with it, or - for stdin.")
    ] = "{}",
    save: Annotated[
        Path | None,
        typer.Option(help="Write a page about --text that works offline; start no server."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="The prompt of the saved page.")] = None,
    plugin: Annotated[
        Path | None, typer.Option(help="A Python file with a lens or recipe of your own.")
    ] = None,
) -> None:
    """Open a page with the lens predictions of every head and the traces of trained models.

    The page is served on this machine only, to those who have the printed address; no data leave
    it. It draws JSON, and --print prints the same JSON: saccade/viewer/README.md lists the routes.
    Ctrl-C stops it.
    """
    refuse_trusted_stdin(ask, trust_remote_code=model.trust_remote_code)
    load_plugin(plugin)
    given = tuple(folders or ([RUNS] if RUNS.is_dir() else []))
    for folder in given:
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}", hint="give a folder of runs or traces")
    if atlas is not None and not atlas.is_dir():
        raise UsageError(
            f"there is no folder {atlas}", hint="give the folder that `saccade atlas build` wrote"
        )
    _check_packages()

    from saccade.viewer.worker import ViewConfig

    config = ViewConfig(
        model=model.model,
        dtype=model.dtype,
        device=model.device,
        device_map=model.device_map,
        lenses=tuple(lens or ()),
        folders=given,
        atlas=atlas,
        data=data,
        has_model=not no_model,
        trust_remote_code=model.trust_remote_code,
    )
    if route is not None:
        typer.echo(_answer(config, route, _question(ask)))
    elif save is not None:
        _save(config, text, save)
    else:
        from saccade.viewer.server import serve

        serve(
            config,
            host=host,
            port=port,
            has_token=not no_token,
            on_address=_show_address,
            is_opening_browser=not no_browser,
        )


def _show_address(url: str) -> None:
    typer.echo(url)
    typer.echo("Ctrl-C stops it", err=True)
    sys.stdout.flush()  # a parent process reads the address from here


def _question(ask: str) -> dict[str, Any]:
    if not ask.lstrip().startswith("{"):
        ask = read_text(ask, what="the question")
    try:
        found = parse_json(ask, where="the question")
    except StoreError as error:
        raise UsageError(str(error), hint='give JSON such as \'{"text": "The cat"}\'') from error
    if not isinstance(found, dict):
        raise UsageError(
            "the question is not a JSON object", hint='such as \'{"text": "The cat"}\''
        )
    return found


def _answer(config: ViewConfig, route: str, question: dict[str, Any]) -> str:
    from saccade.viewer.app import ask_once

    found = ask_once(config, [(route, question)])[0]
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{route} returns a file, not JSON", hint="use `act`") from error


def _save(config: ViewConfig, text: str | None, path: Path) -> None:
    if text is None or not text.strip():
        raise UsageError("a saved page needs a prompt", hint='give one with --text "..."')

    from saccade.store.atomic import atomic_file
    from saccade.viewer.app import page_about

    with atomic_file(path) as temporary:
        temporary.write_text(page_about(config, text), encoding="utf-8")
    typer.echo(f"wrote {path}", err=True)


def _check_packages() -> None:
    try:
        import cachetools  # noqa: F401
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            f"the viewer needs the package {error.name!r}", hint="pip install 'saccade[view]'"
        ) from error
