"""Progress with time left, on stderr: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Where there is no terminal (a log file, a build): seconds until the first line, and between lines.
FIRST_LINE = 5.0
LINE_EVERY = 15.0


@contextmanager
def showing_progress(*, is_quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A function to call with the name of the stage, how much of it is done, and of how much.

    A fourth argument says how it goes: ``loss 3.21``.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if is_quiet or not console.is_terminal:
        yield (lambda *_: None) if is_quiet else _lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bar:
        tasks = {}

        def show(stage: str, done: int, total: int, note: str = "") -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total, note=note)
            bar.update(tasks[stage], completed=done, total=total, note=note)

        yield show


def _lines() -> Callable[..., None]:
    started: dict[str, tuple[float, int]] = {}
    due = time.monotonic() + min(FIRST_LINE, LINE_EVERY)

    def show(stage: str, done: int, total: int, note: str = "") -> None:
        nonlocal due
        now = time.monotonic()
        begin, first = started.setdefault(stage, (now, done))
        if now < due and done < total:
            return
        due = now + LINE_EVERY
        left = (now - begin) * (total - done) / (done - first) if done > first else None
        rest = f", {left:.0f} s left" if left is not None and done < total else ""
        how = f", {note}" if note else ""
        print(f"{stage}: {done}/{total}{rest}{how}", file=sys.stderr, flush=True)

    return show
