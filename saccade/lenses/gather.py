"""One pass over the text: the sums for every layer and head, and a few held-out positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from saccade.errors import CorpusError, ModelError
from saccade.lenses.batches import Batch, Batches, priorities, row_hashes
from saccade.lenses.checkpoint import Checkpoint
from saccade.lenses.sample import Sample
from saccade.lenses.statistics import Statistics
from saccade.processes import Processes

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, how much of it is done, and of how much."""

HELD_OUT_POSITIONS = 1024
# Positions added to the sums at once; bounds the memory for the model's word probabilities.
CHUNK = 2048


@dataclass
class Gathered:
    """What a pass over a text leaves."""

    statistics: Statistics
    sample: Sample | None = None
    """The held-out positions: a uniform sample of at most `HELD_OUT_POSITIONS`."""
    ids: dict[int, Tensor] = field(default_factory=dict)
    """By batch: the text itself, for those who need to read it again."""

    def keep(self, sample: Sample) -> None:
        """Add held-out positions; of too many, those with the smallest priorities stay."""
        both = sample if self.sample is None else Sample.join([self.sample, sample])
        self.sample = both.smallest(HELD_OUT_POSITIONS)

    def held_out(self) -> Sample:
        """The held-out positions of a text that has been read."""
        if self.sample is None:
            raise CorpusError(
                "the held-out windows of this text hold special tokens only",
                hint="give more text, or a longer window",
            )
        return self.sample

    def tensors(self, done: int) -> dict[str, Tensor]:
        """All of it, to be stored."""
        named = {f"sums.{name}": total for name, total in self.statistics.sums.items()}
        named |= {f"ids.{index}": ids for index, ids in self.ids.items()}
        named |= self.sample.tensors() if self.sample is not None else {}
        return {**named, "done": torch.tensor(done)}

    def restore(self, named: dict[str, Tensor]) -> int:
        """Take up what was stored; returns how many batches it covers."""
        sums = {k.removeprefix("sums."): v for k, v in named.items() if k.startswith("sums.")}
        stored = Statistics.from_tensors(sums, self.statistics.layers)
        # Copied: what lies in the mapped file may lie where products are summed in another order.
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
    """Read every batch once. Processes share them; at the end all hold the sums of all."""
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
            f"{model.name} gives numbers that are not finite on batch {index} of this text",
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
        # Usually all rows are fitted on: then a slice, which copies nothing.
        whole = len(some) == rows
        z = {k: each if whole else each[some.to(each.device)] for k, each in batch.z.items()}
        final = batch.final if whole else batch.final[some.to(batch.final.device)]
        gathered.statistics.add(model, z, final, is_text=is_text[some], phase=phase[some])


def _share(gathered: Gathered, model: LanguageModel, processes: Processes) -> None:
    gathered.statistics.add_up(processes)
    # A process may have no held-out rows, or no text at all; what it sends must fit all the same.
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
