"""One pass over the text: the sums for every layer and head, and a few held-out positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from saccade.lenses.batches import Batch, Batches
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
    held_out: list[Sample] = field(default_factory=list)
    ids: dict[int, Tensor] = field(default_factory=dict)
    """By batch: the text itself, for those who need to read it again."""

    @property
    def sample(self) -> Sample:
        """The held-out positions."""
        return Sample.join(self.held_out)

    def tensors(self, done: int) -> dict[str, Tensor]:
        """All of it, to be stored."""
        named = {f"sums.{name}": total for name, total in self.statistics.sums.items()}
        named |= {f"ids.{index}": ids for index, ids in self.ids.items()}
        named |= self.sample.tensors() if self.held_out else {}
        return {**named, "done": torch.tensor(done)}

    def restore(self, named: dict[str, Tensor]) -> int:
        """Take up what was stored; returns how many batches it covers."""
        for name, total in self.statistics.sums.items():
            total.copy_(named[f"sums.{name}"])
        self.ids = {int(k.split(".")[1]): v for k, v in named.items() if k.startswith("ids.")}
        self.held_out = [Sample.from_tensors(named)] if "sample.final" in named else []
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
    n_held_out = int(batches.held_out_rows().sum())
    mine = range(processes.rank, len(batches), processes.world)
    saved = checkpoint.load() if checkpoint else None
    done = gathered.restore(saved) if saved else 0
    for count, index in enumerate(mine):
        if count < done:
            continue
        _add(gathered, model, batches.read(index), index, n_held_out)
        if progress:
            progress("reading", count + 1, len(mine))
        if checkpoint:
            checkpoint.save_sometimes(lambda n=count + 1: gathered.tensors(n))
    if checkpoint and done < len(mine):
        checkpoint.save(gathered.tensors(len(mine)))
    if processes.world > 1:
        _share(gathered, model, processes)
        gathered.held_out = [_in_text_order(gathered, batches, processes.world)]
    return gathered


def _add(
    gathered: Gathered, model: LanguageModel, batch: Batch, index: int, n_held_out: int
) -> None:
    gathered.ids[index] = batch.ids.cpu()
    rows, window = batch.final.shape[:2]
    if bool(batch.held_out.any()):
        each = -(-HELD_OUT_POSITIONS // n_held_out)
        columns = ((torch.arange(each) + 0.5) * window / each).long().unique()
        held_rows = batch.held_out.nonzero()[:, 0]
        positions = (held_rows[:, None] * window + columns).flatten()
        gathered.held_out.append(Sample.take(batch.z, batch.final, positions))
    fitted = (~batch.held_out).nonzero()[:, 0]
    for some in fitted.split(max(1, CHUNK // window)):
        # Usually all rows are fitted on: then a slice, which copies nothing.
        whole = len(some) == rows
        z = {k: held if whole else held[some.to(held.device)] for k, held in batch.z.items()}
        final = batch.final if whole else batch.final[some.to(batch.final.device)]
        gathered.statistics.add(model, z, final)


def _share(gathered: Gathered, model: LanguageModel, processes: Processes) -> None:
    processes.add_up(gathered.statistics.sums.values())
    # A process may have no held-out rows, or no text at all; what it sends must fit all the same.
    nothing = Sample(
        z={at.index: torch.zeros(0, at.n_heads, at.d_head) for at in model.layers},
        final=torch.zeros(0, model.d_model),
    )
    mine = gathered.sample.to(torch.float32) if gathered.held_out else nothing
    z = {layer: torch.cat(processes.in_order(mine.z[layer].cpu())) for layer in nothing.z}
    gathered.held_out = [Sample(z=z, final=torch.cat(processes.in_order(mine.final.cpu())))]
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


def _in_text_order(gathered: Gathered, batches: Batches, world: int) -> Sample:
    """The held-out positions as one process would have them: by row of the text, not by rank."""
    is_held_out = batches.held_out_rows()
    sizes = [len(gathered.ids[index]) for index in range(len(batches))]
    rows = torch.arange(len(is_held_out)).split(sizes)
    held = [each[is_held_out[each]] for each in rows]
    by_rank = torch.cat([part for rank in range(world) for part in held[rank::world]])
    sample = gathered.sample
    columns = len(sample) // len(by_rank)  # the same of every row
    place = by_rank.argsort()[:, None] * columns + torch.arange(columns)
    return sample[place.flatten()]
