"""One pass over the text: the sums for every layer and head, and a few held-out positions."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade import __version__
from saccade.distributed import Processes, noticing_interrupts
from saccade.errors import CorpusError, ModelError, StoreError
from saccade.interp.heads.capture import Captured, capture
from saccade.interp.lenses.batches import Batch, Batches, priorities, row_hashes
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.held_out import Sample
from saccade.interp.lenses.statistics import Statistics
from saccade.store.atomic import Hold, cache_dir, locked, settled_folder, write_refused
from saccade.store.folder import read_folder, write_folder

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Where an interrupted fit resumes: named tensors in the user's cache, checked by hash when read.
#
# The key of a fit is a hash of everything that determines it, so that the same command resumes it.
# If several such fits run at once, one keeps checkpoints and the others run without: a lock that
# lasts as long as its process decides. Checkpoints not written for two weeks are removed.

# Often enough that little is lost, and rarely enough that writing (about 250 MB for the default
# model) takes at most a hundredth of the time on any disk.
EVERY_SECONDS = 30.0
PAUSE_OVER_WRITING = 100
KEPT_SECONDS = 14 * 24 * 3600
STATE = "state.safetensors"
LAYOUT = 2  # format version; checkpoints with another version are ignored and later removed
_LOCK = "lock"
_ATTEMPTS = 100
_ALONE = Processes()


class FitInterrupted(KeyboardInterrupt):
    """A fit was interrupted and has left a checkpoint."""


@dataclass
class Checkpoint:
    """The progress of one process in one stage of a fit."""

    folder: Path
    name: str
    is_stopping: Callable[[], bool] = lambda: False
    """Whether an interrupt was requested: the stage then saves and stops."""
    is_kept: bool = True
    """False: another process keeps the checkpoint of the same fit; nothing is read or written."""
    _written: float = field(default_factory=time.monotonic)
    _writing: float = 0.0

    def load(self) -> dict[str, Tensor] | None:
        """The last saved state, if it is intact."""
        if not (self.is_kept and settled_folder(self.folder / self.name).is_dir()):
            return None
        try:
            return read_folder(self.folder / self.name, needs=[STATE]).tensors[STATE]
        except StoreError:
            # Damaged: start again, which costs time but not correctness.
            return None

    def save_sometimes(
        self, tensors: Callable[[], Mapping[str, Tensor]], *, together: Processes = _ALONE
    ) -> None:
        """Save, unless the last save is recent; on an interrupt, save and stop.

        Args:
            together: processes at the same step with the same state: the first one saves, and all
                of them stop at the same step.

        Raises:
            KeyboardInterrupt: an interrupt was requested, and the checkpoint is saved.
        """
        is_stopping = torch.tensor(int(self.is_stopping()))
        together.largest(is_stopping)
        if together.is_first and (is_stopping or self._is_due()):
            self.save(tensors())
        if is_stopping:
            together.wait()
            raise KeyboardInterrupt

    def _is_due(self) -> bool:
        pause = max(EVERY_SECONDS, PAUSE_OVER_WRITING * self._writing)
        return time.monotonic() - self._written >= pause

    def save(self, tensors: Mapping[str, Tensor]) -> None:
        """Save now."""
        if not self.is_kept:
            return
        start = time.monotonic()
        write_folder(self.folder / self.name, {"kind": "checkpoint of a fit"}, {STATE: tensors})
        self._written = time.monotonic()
        self._writing = self._written - start


@dataclass(frozen=True)
class UnfinishedFit:
    """The checkpoints of one process of one fit."""

    folder: Path
    is_kept: bool

    @contextmanager
    def stage(self, name: str) -> Iterator[Checkpoint]:
        """The checkpoint of a stage. Ctrl-C is noticed when the stage calls `save_sometimes`."""
        with noticing_interrupts() as is_asked:
            try:
                yield Checkpoint(self.folder, name, is_stopping=is_asked, is_kept=self.is_kept)
            except RuntimeError as error:
                if is_asked():  # the processes that this one waits for have already stopped
                    raise KeyboardInterrupt from error
                raise
        if is_asked():  # after the last step
            raise KeyboardInterrupt

    @property
    def has_checkpoint(self) -> bool:
        """Whether the same fit, started again, would find a checkpoint."""
        return self.is_kept and any(path.is_dir() for path in self.folder.glob("[!.]*"))


@contextmanager
def unfinished_fit(settings: Mapping[str, Any], *, rank: int = 0) -> Iterator[UnfinishedFit]:
    """The checkpoints of a fit with exactly these settings; they are removed when the block ends.

    If it fails or is interrupted they are kept.

    Raises:
        FitInterrupted: Ctrl-C ended the block, and the same fit will resume.
        StoreError: the cache cannot be written to.
    """
    identity = {**settings, "rank": rank, "layout": LAYOUT, "saccade": __version__}
    text = json.dumps(identity, sort_keys=True, default=str)
    root = cache_dir() / "unfinished"
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:16]
    with ExitStack() as stack:
        try:
            is_kept = _taken_up(folder, stack)
        except OSError as error:
            raise write_refused(folder, error) from error
        _sweep(root)
        fit = UnfinishedFit(folder, is_kept)
        is_done = False
        try:
            yield fit
            is_done = True
        except KeyboardInterrupt as error:
            if fit.has_checkpoint:
                raise FitInterrupted("the fit is saved; the same command resumes it") from error
            raise
        finally:
            if is_kept and (is_done or not fit.has_checkpoint):
                shutil.rmtree(folder, ignore_errors=True)


def _taken_up(folder: Path, stack: ExitStack) -> bool:
    """Lock the folder until the stack ends; False if another process has it."""
    for _ in range(_ATTEMPTS):
        folder.mkdir(parents=True, exist_ok=True)
        # The fit that owned the folder may finish and remove it at this moment.
        with suppress(FileNotFoundError):
            return stack.enter_context(locked(folder / _LOCK)) is not Hold.TAKEN
    return False


def _sweep(root: Path) -> None:
    """Remove unlocked checkpoints that were not written for two weeks."""
    for folder in [path for path in root.iterdir() if path.is_dir()]:
        with suppress(OSError):
            written = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
            if time.time() - written < KEPT_SECONDS:
                continue
            with locked(folder / _LOCK) as hold:
                if hold is not Hold.TAKEN:
                    shutil.rmtree(folder, ignore_errors=True)


Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the number of units done, and their total."""

HELD_OUT_POSITIONS = 1024
# Positions added to the sums at once; bounds the memory for the model's token probabilities.
CHUNK = 2048


@dataclass
class Gathered:
    """The result of one pass over a text."""

    statistics: Statistics
    sample: Sample | None = None
    """The held-out positions: a uniform sample of at most `HELD_OUT_POSITIONS`."""
    ids: dict[int, Tensor] = field(default_factory=dict)
    """The text itself by batch, for methods that read it again."""

    def keep(self, sample: Sample) -> None:
        """Add held-out positions; above the limit, those with the smallest priorities stay."""
        both = sample if self.sample is None else Sample.join([self.sample, sample])
        self.sample = both.smallest(HELD_OUT_POSITIONS)

    def held_out(self) -> Sample:
        """The held-out positions of a text that has been read."""
        if self.sample is None:
            raise CorpusError(
                "the held-out windows of this text contain only special tokens",
                hint="give more text, or a longer window",
            )
        return self.sample

    def tensors(self, done: int) -> dict[str, Tensor]:
        """All state as named tensors, for storage."""
        named = {f"sums.{name}": total for name, total in self.statistics.sums.items()}
        named |= {f"ids.{index}": ids for index, ids in self.ids.items()}
        named |= self.sample.tensors() if self.sample is not None else {}
        return {**named, "done": torch.tensor(done)}

    def restore(self, named: dict[str, Tensor]) -> int:
        """Load stored state; returns the number of batches that it covers."""
        sums = {k.removeprefix("sums."): v for k, v in named.items() if k.startswith("sums.")}
        stored = Statistics.from_tensors(sums, self.statistics.layers)
        # Copied: the alignment of the mapped file may change the order of summation in products.
        for name, total in self.statistics.sums.items():
            total.copy_(stored.sums[name])
        self.ids = {int(k.split(".")[1]): v for k, v in named.items() if k.startswith("ids.")}
        self.sample = Sample.from_tensors(named) if "sample.final" in named else None
        return int(named["done"])


@torch.no_grad()
def gather(
    model: LanguageModel,
    batches: Batches,
    *,
    processes: Processes,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Gathered:
    """Read every batch once. Processes share the batches; at the end each has the total sums."""
    gathered = Gathered(Statistics.empty(model))
    mine = range(processes.rank, len(batches), processes.world)
    saved = checkpoint.load() if checkpoint else None
    done = gathered.restore(saved) if saved else 0
    for count, index in enumerate(mine):
        if count < done:
            continue
        _add(gathered, model, batches.read(index), index)
        if progress:
            progress("reading", count + 1, len(mine))
        if checkpoint:
            checkpoint.save_sometimes(lambda n=count + 1: gathered.tensors(n))
    if checkpoint and done < len(mine):
        checkpoint.save(gathered.tensors(len(mine)))
    if processes.world > 1:
        _share(gathered, model, processes)
    return gathered


def _add(gathered: Gathered, model: LanguageModel, batch: Batch, index: int) -> None:
    if not bool(torch.isfinite(batch.final).all()):
        raise ModelError(
            f"{model.name} gives values that are not finite on batch {index} of this text",
            hint="open the model with dtype float32, or use other text",
        )
    gathered.ids[index] = batch.ids.cpu()
    rows, window = batch.final.shape[:2]
    is_text = model.is_text(batch.ids).gather(1, batch.positions).cpu()
    if bool((held_out := is_text & batch.held_out[:, None]).any()):
        at = held_out.flatten().nonzero()[:, 0]
        priority = priorities(batch).flatten()[at]
        first = priority.argsort(stable=True)[:HELD_OUT_POSITIONS]
        gathered.keep(Sample.take(batch.z, batch.final, at[first], priority=priority[first]))
    phase = row_hashes(batch.ids)
    fitted = (~batch.held_out).nonzero()[:, 0]
    for some in fitted.split(max(1, CHUNK // window)):
        # Usually all rows are used for fitting: then nothing is copied.
        whole = len(some) == rows
        z = {k: each if whole else each[some.to(each.device)] for k, each in batch.z.items()}
        final = batch.final if whole else batch.final[some.to(batch.final.device)]
        gathered.statistics.add(model, z, final, is_text=is_text[some], phase=phase[some])


def _share(gathered: Gathered, model: LanguageModel, processes: Processes) -> None:
    gathered.statistics.add_up(processes)
    # A process may have no held-out rows, or no text; the shapes that it sends must still match.
    nothing = Sample(
        z={at.index: torch.zeros(0, at.n_heads, at.d_head) for at in model.layers},
        final=torch.zeros(0, model.d_model),
        priority=torch.zeros(0, dtype=torch.long),
    )
    mine = nothing if gathered.sample is None else gathered.sample.to(torch.float32)
    assert mine.priority is not None, "held-out positions are sampled by priority"
    gathered.sample = Sample(
        z={layer: torch.cat(processes.in_order(mine.z[layer].cpu())) for layer in nothing.z},
        final=torch.cat(processes.in_order(mine.final.cpu())),
        priority=torch.cat(processes.in_order(mine.priority)),
    ).smallest(HELD_OUT_POSITIONS)
    # In the order in which they were read: a stored checkpoint does not keep it.
    ids = [gathered.ids[index] for index in sorted(gathered.ids)]
    counts = processes.in_order(torch.tensor([len(each) for each in ids], dtype=torch.long))
    window = torch.tensor([ids[0].shape[1] if ids else 0])
    processes.largest(window)
    empty = torch.zeros(0, int(window), dtype=torch.long)
    texts = processes.in_order(torch.cat([empty, *ids]))
    gathered.ids = {
        rank + k * processes.world: part
        for rank, (text, sizes) in enumerate(zip(texts, counts, strict=True))
        for k, part in enumerate(text.split([int(n) for n in sizes]))
    }


# What the fitting method of a lens kind receives.


@runtime_checkable
class Sums(Protocol):
    """Sums over a text that a lens kind defines; the sums of two parts of a text add up."""

    sums: dict[str, Tensor]

    def add(self, captured: Captured, is_text: Bool[Tensor, "batch pos"] | None = None) -> None:
        """Add the positions of a forward pass; False = a position to skip (a special token)."""
        ...


_Sums = TypeVar("_Sums", bound=Sums)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A fit after the first pass over its text: the input of a method (`Lens.methods`)."""

    model: LanguageModel
    config: FitConfig
    gathered: Gathered
    """Sums of that pass, and held-out positions."""
    baseline: Float[Tensor, " d_vocab"]
    """The log of the mean predicted distribution."""
    text: Corpus
    """The windows used for fitting, to be read again."""
    held_out: Int[Tensor, "window pos"]
    """Other windows, for model selection."""
    processes: Processes
    unfinished: UnfinishedFit
    """Where the stages of a method leave checkpoints."""
    progress: Progress | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        """The requested layers; by default all layers of the model."""
        return self.config.layers or tuple(at.index for at in self.model.layers)

    @torch.no_grad()
    def add_up(self, sums: _Sums) -> _Sums:
        """Read the text once more, with the residual stream, into sums that a lens kind defines.

        Processes share the text, and at the end each has the total sums. An interrupted pass
        resumes.
        """
        mine = self.text.windows.split(self.config.rows)
        mine = mine[self.processes.rank :: self.processes.world]
        with self.unfinished.stage(type(sums).__name__) as checkpoint:
            saved = checkpoint.load()
            done = int(saved.pop("done")) if saved else 0
            for name, total in (saved or {}).items():
                sums.sums[name].copy_(total)  # into its own memory, as in `Gathered.restore`
            for count, ids in enumerate(mine[done:], start=done + 1):
                captured = capture(self.model, ids.to(self.model.device), residual=True)
                sums.add(captured, self.model.is_text(ids))
                if self.progress:
                    self.progress("reading the residual stream", count, len(mine))
                checkpoint.save_sometimes(lambda n=count: {**sums.sums, "done": torch.tensor(n)})
            if done < len(mine):
                checkpoint.save({**sums.sums, "done": torch.tensor(len(mine))})
        self.processes.add_up(sums.sums.values())
        return sums
