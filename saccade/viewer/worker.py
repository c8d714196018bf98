"""The worker: one job at a time on the model, a short queue, progress, cancelled jobs."""

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


# Configuration.


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """What the viewer shows: a model with its lenses, folders of runs and traces."""

    model: str | None = None
    """A hub name, a folder or a GGUF file. Default: the small default model."""
    dtype: str | None = None
    """float32 (default), bfloat16, float16, float64 or auto."""
    device: str | None = None
    """Where the model runs. Default: the CPU."""
    device_map: str | None = None
    """How accelerate spreads a large model over devices."""
    lenses: tuple[str, ...] = ()
    """Folders or hub names. Default: where `saccade lens fit` writes them."""
    folders: tuple[Path, ...] = ()
    """Runs, saved traces, or folders of them."""
    atlas: Path | None = None
    """Folder of an atlas. Default: where `saccade atlas build` writes that of the model."""
    data: Path | None = None
    """Folder of data sets, for inputs that name one of their images."""
    has_model: bool = True
    """False shows runs and traces only."""
    trust_remote_code: bool = False
    """True runs Python code from the model's folder or repository."""


Value = TypeVar("Value")


def sized_cache(most: int, *, size: Callable[[Value], int]) -> LRUCache[str, Value]:
    """A least-recently-used cache, bounded by the total size of its values.

    A value larger than the whole cache is stored too, alone, until the next one is added: so a long
    text needs no new run of the model for each of its heads. Each cache is used by one thread only.

    >>> cache = sized_cache(5, size=len)
    >>> cache["a"], cache["b"] = "xxx", "yyy"
    >>> list(cache)
    ['b']
    >>> cache["c"] = "larger than all"
    >>> list(cache)
    ['c']
    """
    return LRUCache(most, getsizeof=lambda value: min(most, size(value)))


MOST_WAITING = 16  # jobs in the queue; the answers of more would come too late
CLOSE_SECONDS = 5.0  # time for the running job to end when the worker closes
POLL_SECONDS = 0.25  # between checks whether the client is still connected

Progress: TypeAlias = Callable[[str, int, int], None]


class BusyError(SaccadeError):
    """Too many questions are waiting already."""


class JobCancelledError(Exception):
    """Ends a job whose clients have all disconnected."""


@dataclass(frozen=True)
class Step:
    """Progress of a job."""

    what: str
    done: int
    total: int


@dataclass(eq=False)
class _PendingJob:
    """A queued or running job; clients with the same question share it."""

    future: asyncio.Future[Any]
    waiters: int = 0
    is_cancelled: threading.Event = field(default_factory=threading.Event)


@final
class Worker:
    """A single thread, since two jobs on one model would only share its cores.

    A question that is already queued or running is not queued again: its clients share the answer.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon thread: Ctrl-C does not wait for a model that is still being loaded.
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)
        self._thread.start()
        self._pendings: dict[str, _PendingJob] = {}
        self._most_waiting = most_waiting
        self.step: Step | None = None

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for the running one."""
        return max(0, len(self._pendings) - 1)

    async def ask(
        self,
        key: str,
        job: Callable[[Progress], Any],
        *,
        is_gone: Callable[[], Awaitable[bool]] | None = None,
    ) -> Any:
        """Queue a job and wait for its result.

        Args:
            key: jobs with the same key are one job.
            is_gone: whether the client has disconnected.

        Raises:
            BusyError: the queue is full.
            JobCancelledError: the client has disconnected.
        """
        pending = self._pendings.get(key)
        if pending is None or pending.is_cancelled.is_set():
            pending = self._queue(key, job)
        pending.waiters += 1
        try:
            while True:
                done, _ = await asyncio.wait({pending.future}, timeout=POLL_SECONDS)
                if done:
                    return pending.future.result()
                if is_gone is not None and await is_gone():
                    raise JobCancelledError
        finally:
            pending.waiters -= 1
            if not pending.waiters:
                pending.is_cancelled.set()

    def close(self) -> None:
        """Cancel the running job at its next step, and start no other."""
        for pending in self._pendings.values():
            pending.is_cancelled.set()
        self._jobs.put(None)
        # If a thread in which torch has run is killed at exit, the process aborts.
        self._thread.join(CLOSE_SECONDS)

    def _queue(self, key: str, job: Callable[[Progress], Any]) -> _PendingJob:
        if len(self._pendings) > self._most_waiting:
            raise BusyError(
                f"busy: {len(self._pendings)} questions are waiting for the model",
                hint="try again in a moment",
            )
        loop = asyncio.get_running_loop()
        pending = self._pendings[key] = _PendingJob(loop.create_future())
        self._jobs.put(lambda: self._do(job, pending, loop))

        def forget(ended: asyncio.Future[Any]) -> None:
            if self._pendings.get(key) is pending:
                del self._pendings[key]
            if not ended.cancelled():
                ended.exception()  # marks it as retrieved, even if every client has disconnected

        pending.future.add_done_callback(forget)
        return pending

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _do(
        self, job: Callable[[Progress], Any], pending: _PendingJob, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Runs in the worker's thread, and pass its result to the event loop."""
        result, error = None, None
        try:
            result = self._run(job, pending.is_cancelled)
        except Exception as raised:  # noqa: BLE001  any error is raised again for the clients
            error = raised

        def settle() -> None:
            if pending.future.done():
                return
            if error is None:
                pending.future.set_result(result)
            else:
                pending.future.set_exception(error)

        with suppress(RuntimeError):  # the loop is closed: no client is left
            loop.call_soon_threadsafe(settle)

    def _run(self, job: Callable[[Progress], Any], is_cancelled: threading.Event) -> Any:
        def progress(what: str, done: int, total: int) -> None:
            self.step = Step(what, done, total)
            if is_cancelled.is_set():
                raise JobCancelledError

        try:
            if is_cancelled.is_set():
                raise JobCancelledError
            return job(progress)
        finally:
            self.step = None


# Open the model and its lenses; meanwhile the page is already shown.

DEFAULT_NAME = "default"


class OpenedModel(NamedTuple):
    """A model, its lenses by name, and the error if the default lenses could not be loaded."""

    model: LanguageModel
    lenses: dict[str, Lenses]
    problem: LensError | None = None


def open_model_and_lenses(config: ViewConfig, progress: Progress) -> OpenedModel:
    """Open the model and the lenses; reports each step, since the first ones take seconds."""
    total = 2 + max(1, len(config.lenses))
    progress("importing torch", 0, total)
    from saccade.interp.heads.model import DEFAULT_MODEL, open_model
    from saccade.interp.lenses.lens_set import load_lenses

    name = DEFAULT_MODEL if config.model is None else config.model
    progress(f"opening {Path(name).name}", 1, total)
    model = open_model(
        name,
        dtype=config.dtype,
        device=config.device,
        device_map=config.device_map,
        trust_remote_code=config.trust_remote_code,
    )
    lenses: dict[str, Lenses] = {}
    for index, named in enumerate(config.lenses):
        progress(f"loading lenses {lens_name(named, lenses)}", 2 + index, total)
        lenses[lens_name(named, lenses)] = load_lenses(named, model)
    problem = None
    if not config.lenses:
        progress("loading lenses", 2, total)
        try:
            lenses[DEFAULT_NAME] = load_lenses(None, model)
        except LensError as error:  # the model works without lenses; the page shows how to fit some
            problem = error
    return OpenedModel(model, lenses, problem)


def lens_name(named: str, taken: dict[str, Lenses]) -> str:
    """Name of lenses on the page: the last part of their path, made unique.

    >>> lens_name("here/closed", {}), lens_name("there/closed/", {"closed": None})
    ('closed', 'closed-2')
    """
    name = Path(named).name or named
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique
