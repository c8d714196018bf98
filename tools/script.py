"""How a tool of this folder becomes a command line, by the rules of `saccade` itself.

`--help` ends with the examples, an error is one line and one hint, `--debug` shows the traceback,
the exit code is 0 (done), 1 (failed) or 2 (misuse).
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from saccade.cli.main import Command, add_command, run_app


def run_script(name: str, command: Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command as a script of this folder; its exit code.

    Args:
        name: of the file.
        arguments: those of the process without.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    add_command(app, name, command)
    return run_app(app, arguments, name=f"python tools/{name}.py")
