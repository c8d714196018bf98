"""Run a script of this folder with the command-line conventions of `saccade`.

`--help` ends with examples, an error is one line and one hint, `--debug` shows the traceback, and
the exit code is 0 (success), 1 (failure) or 2 (usage error).
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from saccade.cli.main import Command, add_command, run_app


def run_script(name: str, command: Command, arguments: Sequence[str] | None = None) -> int:
    """Run a command as a script of this folder and return its exit code.

    Args:
        name: Name of the script, without `.py`.
        arguments: Default: the arguments of the process.
    """
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    add_command(app, name, command)
    return run_app(app, arguments, name=f"python tools/{name}.py")
