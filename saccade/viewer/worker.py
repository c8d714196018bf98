"""One job at a time on the model: a short queue, progress, and giving up what nobody waits for."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, final

from cachetools import LRUCache

from saccade.errors import LensError, SaccadeError

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses


# What a viewer is started with.


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """What is shown: a model with its lenses, folders of runs and traces."""

    model: str | None = None
    """A hub name or a folder; the small default without it."""
    lenses: tuple[str, ...] = ()
    """Folders or hub names; where `saccade lens fit` puts them without."""
    folders: tuple[Path, ...] = ()
    """Runs, saved traces, or folders of such."""
    data: Path | None = None
    """The folder with data sets, for inputs that name one of their images."""
    has_model: bool = True
    """False shows runs and traces only."""
    trust_remote_code: bool = False
    """True runs the Python code that the model brings with it."""


Made = TypeVar("Made")


def sized_cache(most: int, *, size: Callable[[Made], int]) -> LRUCache[str, Made]:
    """A cache bounded by the size of all that is in it; what was used longest ago goes first.

    What is larger than all of it is kept as well, alone, until the next one comes: a long text
    costs no new run of the model for each of its heads. Each cache is used by one thread only.

    >>> kept = sized_cache(5, size=len)
    >>> kept["a"], kept["b"] = "xxx", "yyy"
    >>> list(kept)
    ['b']
    >>> kept["c"] = "larger than all"
    >>> list(kept)
    ['c']
    """
    return LRUCache(most, getsizeof=lambda made: min(most, size(made)))


MOST_WAITING = 16  # jobs; more would be old news by the time they are done
PATIENCE = 5.0  # seconds that a job gets to end in when all is over
LOOK_EVERY = 0.25  # seconds between looks whether the asker is still there

Progress: TypeAlias = Callable[[str, int, int], None]


class BusyError(SaccadeError):
    """Too many questions are waiting already."""


class GivenUpError(Exception):
    """Ends a job that nobody waits for any more."""


@dataclass(frozen=True)
class Step:
    """How far a job is."""

    what: str
    done: int
    total: int


@dataclass(eq=False)
class _Ticket:
    """A job on its way; several askers of one question share it."""

    future: asyncio.Future[Any]
    askers: int = 0
    is_unwanted: threading.Event = field(default_factory=threading.Event)


@final
class Worker:
    """A single thread, since two jobs on one model would only share its cores.

    Who asks what is being answered already waits for the same answer.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: Ctrl-C does not wait for a model that is still being read from disk.
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()
        self._tickets: dict[str, _Ticket] = {}
        self._most_waiting = most_waiting
        self.step: Step | None = None

    @property
    def waiting(self) -> int:
        """How many jobs wait behind the one that runs."""
        return max(0, len(self._tickets) - 1)

    async def ask(
        self,
        key: str,
        job: Callable[[Progress], Any],
        *,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> Any:
        """The result of a job, when its turn has come.

        Args:
            key: two jobs with the same key are one.
            is_gone: whether the asker has left.

        Raises:
            BusyError: the queue is full.
            GivenUpError: the asker has left.
        """
        ticket = self._tickets.get(key)
        if ticket is None or ticket.is_unwanted.is_set():
            ticket = self._begin(key, job)
        ticket.askers += 1
        try:
            while True:
                done, _ = await asyncio.wait({ticket.future}, timeout=LOOK_EVERY)
                if done:
                    return ticket.future.result()
                if is_gone is not None and await is_gone():
                    raise GivenUpError
        finally:
            ticket.askers -= 1
            if not ticket.askers:
                ticket.is_unwanted.set()

    def close(self) -> None:
        """Let the running job end at its next step, and start no other."""
        for ticket in self._tickets.values():
            ticket.is_unwanted.set()
        self._jobs.put(None)
        # A thread that torch has worked in aborts the process if it is cut off at its end.
        self._thread.join(PATIENCE)

    def _begin(self, key: str, job: Callable[[Progress], Any]) -> _Ticket:
        if len(self._tickets) > self._most_waiting:
            raise BusyError(
                f"busy: {len(self._tickets)} questions are waiting for the model",
                hint="ask again in a moment",
            )
        loop = asyncio.get_running_loop()
        ticket = self._tickets[key] = _Ticket(loop.create_future())
        self._jobs.put(lambda: self._do(job, ticket, loop))

        def forget(ended: asyncio.Future[Any]) -> None:
            if self._tickets.get(key) is ticket:
                del self._tickets[key]
            if not ended.cancelled():
                ended.exception()  # seen here too, should every asker have left

        ticket.future.add_done_callback(forget)
        return ticket

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _do(
        self, job: Callable[[Progress], Any], ticket: _Ticket, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Runs in the worker's thread, and tells the askers' loop how it ended."""
        result, error = None, None
        try:
            result = self._run(job, ticket.is_unwanted)
        except Exception as raised:  # noqa: BLE001  whatever it is, it belongs to the askers
            error = raised

        def settle() -> None:
            if ticket.future.done():
                return
            if error is None:
                ticket.future.set_result(result)
            else:
                ticket.future.set_exception(error)

        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            loop.call_soon_threadsafe(settle)

    def _run(self, job: Callable[[Progress], Any], unwanted: threading.Event) -> Any:
        def progress(what: str, done: int, total: int) -> None:
            self.step = Step(what, done, total)
            if unwanted.is_set():
                raise GivenUpError

        try:
            if unwanted.is_set():
                raise GivenUpError
            return job(progress)
        finally:
            self.step = None


# Open the model and its lenses while the page is already in sight.

DEFAULT_NAME = "default"


class Opened(NamedTuple):
    """A model, its lenses by name, and what went wrong with lenses that nobody named."""

    model: LanguageModel
    lenses: dict[str, Lenses]
    problem: LensError | None = None


def open_model_and_lenses(config: ViewConfig, progress: Progress) -> Opened:
    """Open what was asked for; each step is told, since the first ones take seconds."""
    total = 2 + max(1, len(config.lenses))
    progress("starts torch", 0, total)
    from saccade.interp.heads.model import DEFAULT_MODEL, open_model
    from saccade.interp.lenses.lens_set import load_lenses

    name = DEFAULT_MODEL if config.model is None else config.model
    progress(f"opens {Path(name).name}", 1, total)
    model = open_model(name, trust_remote_code=config.trust_remote_code)
    lenses: dict[str, Lenses] = {}
    for place, named in enumerate(config.lenses):
        progress(f"reads lenses {lens_name(named, lenses)}", 2 + place, total)
        lenses[lens_name(named, lenses)] = load_lenses(named, model)
    problem = None
    if not config.lenses:
        progress("reads lenses", 2, total)
        try:
            lenses[DEFAULT_NAME] = load_lenses(None, model)
        except LensError as error:  # the model can be looked at without; the page says how to fit
            problem = error
    return Opened(model, lenses, problem)


def lens_name(named: str, taken: dict[str, Lenses]) -> str:
    """What lenses are called on the page: the last part of their path, made unique.

    >>> lens_name("here/closed", {}), lens_name("there/closed/", {"closed": None})
    ('closed', 'closed-2')
    """
    name = Path(named).name or named
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique
