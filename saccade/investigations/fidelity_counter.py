"""How much of a measurement is done."""

from __future__ import annotations

from collections.abc import Callable

from saccade.lenses.gather import Progress


class RunCounter:
    """Counts windows run, because a run for a direction is on fewer than one for a head."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def steps(self, windows: int) -> Callable[[], None]:
        """What to call after each run of so many windows."""

        def tick() -> None:
            self.done += windows
            if self.progress is not None:
                self.progress("touching heads", self.done, self.total)

        return tick
