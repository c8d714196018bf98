"""Ctrl-C and a cluster's farewell, noticed between two steps instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether someone wants this process to end.

    The first Ctrl-C only asks; a second one ends it at once, as usual. SIGTERM, which schedulers of
    clusters send before they kill, asks too.
    """
    asked = False

    def on_signal(number: int, _: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals only ever reach the main thread
        return
    before = {
        number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
