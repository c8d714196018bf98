"""Build an atlas: run a model over a text, and measure every head at some of its positions.

Each window runs once, which gives the attention weights and the keys and values of all positions.
Then, at each sampled position, one pass in which copies of that token join the cached text, each
with one head replaced, gives the effects of all heads (`saccade.interp.effects.copies`).

A killed build resumes: its state is kept, after whole chunks of windows. Under ``torchrun`` the
processes share the chunks. Either way the atlas is the same to the last byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import DynamicCache

from saccade.distributed import Processes, joined
from saccade.errors import ModelError, UsageError
from saccade.interp.atlas.atlas import Atlas, AtlasProvenance
from saccade.interp.atlas.atlas_config import AtlasConfig
from saccade.interp.atlas.atlas_parts import (
    with_composition,
    with_directions,
    with_quality,
    with_roles,
    with_sequences,
)
from saccade.interp.atlas.atlas_text import SELF, AtlasText, Chunk, chunks_of, read_text
from saccade.interp.atlas.looks import Sums, add_to, count_sums, look_sums
from saccade.interp.atlas.query_keys import Pairs, Turn, held_out, pair_sums, stacked, turns_of
from saccade.interp.atlas.records import Recorder, Records
from saccade.interp.atlas.records import joined as joined_records
from saccade.interp.effects.joined_pass import uses_interface
from saccade.interp.effects.replacement import Replacement
from saccade.interp.heads.attention_weights import KernelInput, recorded_kernels
from saccade.interp.heads.capture import run_base
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.gather import Checkpoint, Progress, unfinished_fit

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses

Site = tuple[int, int]


def build_atlas(
    model: LanguageModel,
    corpus: str | Path | Sequence[str | Path] = SELF,
    config: AtlasConfig | None = None,
    *,
    heads: Sequence[tuple[int, int | None]] = (),
    lenses: Lenses | None = None,
    replacement: Replacement | None = None,
    progress: Progress | None = None,
    save_to: str | Path | None = None,
) -> Atlas:
    """Measure what every head does, knows and looks at over a text.

    Args:
        corpus: files, folders or a dataset (`saccade.interp.lenses.corpus.read_corpus`), or "self":
            text that the model writes.
        heads: only these, as (layer, head), or (layer, None) for a whole layer.
        lenses: also read these lenses at a quarter of the positions.
        replacement: what replaces a head; by default its mean over text of the model's own.
        save_to: a folder to write the atlas to.

    Example:
        >>> atlas = build_atlas(model, "books/")  # doctest: +SKIP
        >>> max(atlas.heads, key=lambda head: head.kl).name  # doctest: +SKIP
    """
    config = config or AtlasConfig()
    sites = chosen_sites(model, heads)
    text = read_text(model, corpus, config)
    replacement = replacement or Replacement.usual(model)
    provenance = AtlasProvenance(
        model=model.name,
        model_fingerprint=model.fingerprint,
        tokenizer_fingerprint=model.tokenizer_fingerprint,
        sites=sites,
        sources=list(text.sources),
        fingerprints=list(text.fingerprints),
        config=replace(config, tokens=text.n_tokens),
        replaced_by=replacement.by,
        replacement=_fingerprint(replacement),
        lens=None if lenses is None else lenses.digest or _fingerprint_of(lenses),
        versions={name: version(name) for name in ("saccade", "torch", "transformers")},
    )
    recorder = Recorder(model=model, sites=sites, replacement=replacement, lenses=lenses)
    with joined() as processes:
        settings = {**asdict(provenance), "world": processes.world, "stage": "atlas"}
        with unfinished_fit(settings, rank=processes.rank) as unfinished:
            with unfinished.stage("scan") as checkpoint:
                scan = Scan(recorder, text, config)
                scan.run(processes, checkpoint, progress)
            atlas = _atlas(model, provenance, text, scan.gathered(processes))
            if processes.is_first:
                with unfinished.stage("sequences") as checkpoint:
                    atlas = with_sequences(model, atlas, checkpoint=checkpoint, progress=progress)
                parts = {
                    "roles": partial(with_roles, model, progress=progress),
                    "composition": partial(
                        with_composition, model, replacement=replacement, progress=progress
                    ),
                    "directions": partial(with_directions, model, progress=progress),
                }
                for name, measure in parts.items():
                    with unfinished.stage(name) as checkpoint:
                        atlas = _measured_once(atlas, checkpoint, measure)
                atlas = atlas if lenses is None else with_quality(atlas, lenses)
                if save_to is not None:
                    atlas.save(save_to)
            processes.wait()
    return atlas


def chosen_sites(model: LanguageModel, heads: Sequence[tuple[int, int | None]]) -> list[Site]:
    """(layer, head) of the chosen heads, in order of depth; of all where none is chosen."""
    if not heads:
        return [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    found: set[Site] = set()
    for layer, head in heads:
        if head is None:
            found |= {(layer, each) for each in range(model.layer(layer).n_heads)}
        else:
            model.check_head(layer, head)
            found.add((layer, head))
    return sorted(found)


@dataclass
class _State:
    """What a scan has measured so far: sums, and records of its chunks in their order."""

    n_done: int
    """Chunks of this process."""
    sums: Sums
    peaks: list[Tensor]
    numbers: list[Tensor]
    """The windows of ``peaks``."""
    records: list[Records]

    def tensors(self) -> dict[str, Tensor]:
        found = {f"sums.{name}": value for name, value in self.sums.items()}
        found["n_done"] = torch.tensor(self.n_done)
        found["peaks"], found["numbers"] = torch.cat(self.peaks), torch.cat(self.numbers)
        if self.records:
            self.records = [joined_records(self.records)]
            found |= {f"records.{k}": v for k, v in self.records[0].tensors().items()}
        return found

    @classmethod
    def of(cls, stored: Mapping[str, Tensor]) -> _State:
        def under(prefix: str) -> dict[str, Tensor]:
            return {
                name.removeprefix(prefix): value
                for name, value in stored.items()
                if name.startswith(prefix)
            }

        records = under("records.")
        return cls(
            int(stored["n_done"]),
            under("sums."),
            [stored["peaks"]],
            [stored["numbers"]],
            [Records(**records)] if records else [],
        )


class Scan:
    """One pass over the text."""

    def __init__(self, recorder: Recorder, text: AtlasText, config: AtlasConfig) -> None:
        self.recorder, self.text = recorder, text
        self.model = recorder.model
        self.chunks = list(chunks_of(self.model, text, config))
        self.distinct = text.windows.unique()
        self.layers = {
            layer: [head for each, head in recorder.sites if each == layer]
            for layer in dict.fromkeys(layer for layer, _ in recorder.sites)
        }
        self.turns = self._turns()
        self.state = _State(0, {}, [], [], [])

    def _turns(self) -> dict[int, Turn]:
        """For sums of queries and keys; none where they cannot be had: `with_directions` says."""
        try:
            return turns_of(self.model, list(self.layers), self.text.windows[:1])
        except ModelError:
            return {}

    @torch.no_grad()
    def run(self, processes: Processes, checkpoint: Checkpoint, progress: Progress | None) -> None:
        """Measure this process's chunks, from where the checkpoint ends."""
        mine = self.chunks[processes.rank :: processes.world]
        if not mine:
            raise UsageError(
                f"{processes.world} processes cannot share {len(self.chunks)} chunks of text",
                hint="start fewer processes, or give more text",
            )
        if (stored := checkpoint.load()) is not None:
            self.state = _State.of(stored)
        for number in range(self.state.n_done, len(mine)):
            self.add(mine[number])
            self.state.n_done = number + 1
            checkpoint.save_sometimes(self.state.tensors)
            if progress is not None:
                progress("scanning", number + 1, len(mine))
        if stored is None or int(stored["n_done"]) < len(mine):
            checkpoint.save(self.state.tensors())  # what follows may fail, and takes minutes

    def gathered(self, processes: Processes) -> _State:
        """The states of all processes as one, in the order of the text."""
        state = self.state
        processes.add_up(value for _, value in sorted(state.sums.items()))
        records = joined_records(state.records) if state.records else None
        if processes.world > 1:
            assert records is not None, "every process has a chunk"
            records = _gathered_records(records, processes)
        peaks = torch.cat(processes.in_order(torch.cat(state.peaks)))
        numbers = torch.cat(processes.in_order(torch.cat(state.numbers)))
        if records is None or not len(records):
            raise UsageError(
                "the text has no position to measure effects at: only special tokens",
                hint="give more text",
            )
        order = torch.argsort(records.window.long() * self.text.windows.shape[1] + records.position)
        return _State(
            len(self.chunks),
            state.sums,
            [peaks[numbers.argsort()]],
            [numbers.sort().values],
            [records.of(order)],
        )

    def add(self, chunk: Chunk) -> None:
        """Measure one chunk."""
        ids = chunk.windows.to(self.model.device)
        token = torch.searchsorted(self.distinct, chunk.windows)
        is_text = self.model.is_text(chunk.windows)
        n_tokens = len(self.distinct)
        found: dict[int, dict[str, Tensor]] = {}
        peaks: dict[int, Tensor] = {}

        in_pairs = is_text & ~held_out(chunk.windows)[:, None]

        def look(layer: int, kernel: KernelInput, weights: Tensor) -> None:
            heads = self.layers[layer]
            chosen = weights[:, heads].float().cpu()
            found[layer] = look_sums(chosen, chunk.windows, token, is_text, n_tokens=n_tokens)
            peaks[layer] = chosen[:, :, 1:, 1:].amax((2, 3))
            if layer in self.turns:
                pairs = Pairs.of(kernel, weights, heads, in_pairs, self.turns[layer])
                found[layer] |= pair_sums(pairs)

        cache = DynamicCache() if uses_interface(self.model) else None
        layers = [self.model.layer(layer) for layer in self.layers]
        with recorded_kernels(self.model.hf, layers, look), fast_products():
            run_base(self.model.hf, ids, cache=cache)
        by_layer = [found[layer] for layer in self.layers]
        every = {name: stacked([sums[name] for sums in by_layer]) for name in by_layer[0]}
        add_to(self.state.sums, every)
        add_to(self.state.sums, count_sums(chunk.windows, token, is_text, n_tokens=n_tokens))
        self.state.peaks.append(torch.cat([peaks[layer] for layer in self.layers], 1).half())
        self.state.numbers.append(torch.arange(len(ids)) + chunk.start)
        self.state.records += self.recorder.record(chunk._replace(windows=ids.cpu()), cache)


def _gathered_records(records: Records, processes: Processes) -> Records:
    """The records of all processes, by rank."""
    parts = {name: processes.in_order(value) for name, value in records.tensors().items()}
    return joined_records(
        [
            Records(**{name: each[rank] for name, each in parts.items()})
            for rank in range(processes.world)
        ]
    )


def _atlas(
    model: LanguageModel, provenance: AtlasProvenance, text: AtlasText, state: _State
) -> Atlas:
    records = state.records[0]
    used = [records.promoted, records.suppressed, records.predicted, text.windows]
    ids = torch.cat([each.flatten().long() for each in used]).unique().tolist()
    return Atlas(
        provenance,
        records,
        state.sums,
        text.windows,
        text.source,
        state.peaks[0],
        dict(zip(ids, model.tokens(ids), strict=True)),
    )


def _measured_once(
    atlas: Atlas, checkpoint: Checkpoint, measure: Callable[[Atlas], Atlas]
) -> Atlas:
    """The atlas with the tables of one more part, which a resumed build has in its checkpoint."""
    if (stored := checkpoint.load()) is not None:
        return replace(atlas, tables=json.loads(stored["tables"].numpy().tobytes()))
    atlas = measure(atlas)
    tables = bytearray(json.dumps(atlas.tables).encode())
    checkpoint.save({"tables": torch.frombuffer(tables, dtype=torch.uint8)})
    return atlas


def _fingerprint(replacement: Replacement) -> str:
    digest = hashlib.sha256(replacement.by.encode())
    for layer in sorted(replacement.heads):
        digest.update(replacement.heads[layer].float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _fingerprint_of(lenses: Lenses) -> str:
    """Of lenses that were not loaded from a file."""
    digest = hashlib.sha256()
    for layer in sorted(lenses.by_layer):
        for _, value in sorted(lenses.by_layer[layer].state_dict().items()):
            digest.update(value.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
