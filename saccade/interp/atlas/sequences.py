"""Sampled sequences: windows of the text with the attention weights of a head, from strong to weak.

The windows are ordered by a head's largest attention weight in each (its peak, the first position
left out) and cut into fifths of the same size, as HeadVis does: shown are the strongest of the
first fifth, and some of each other at random, so that nobody takes the maximum for the rule. Which
ones depends on the tokens of the windows alone: an atlas of two texts shows the same as the merged
atlases of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.atlas.atlas_text import ROWS
from saccade.interp.heads.attention_weights import recorded_queries
from saccade.interp.heads.capture import run_base
from saccade.interp.heads.onednn import fast_products
from saccade.interp.lenses.batches import row_hashes
from saccade.interp.lenses.gather import Checkpoint, Progress

if TYPE_CHECKING:
    from saccade.interp.atlas.atlas import Atlas
    from saccade.interp.heads.model import LanguageModel

# The defaults of HeadVis, as Neuronpedia runs it.
INTERVALS = 5
STRONGEST, OF_EACH = 10, 3  # sequences of the highest interval, and of each other one
KEYS = 8  # of a query
LEAST_WEIGHT = 0.005


class Sequences(NamedTuple):
    """The sampled sequences of all heads: the strongest first, then those of lower intervals."""

    window: Int[Tensor, "head sequence"]
    """The number of the window; -1 where an interval has fewer."""
    keys: Int[Tensor, "head sequence pos 8"]
    weights: Float[Tensor, "head sequence pos 8"]
    """0 where fewer keys have a weight of at least `LEAST_WEIGHT`."""

    def tensors(self) -> dict[str, Tensor]:
        """By name, to store with an atlas."""
        return {f"sequences.{name}": value for name, value in self._asdict().items()}


def sequences_of(extra: Mapping[str, Tensor]) -> Sequences | None:
    """The sequences that an atlas holds; None if it has none."""
    if "sequences.window" not in extra:
        return None
    return Sequences(*(extra[f"sequences.{name}"] for name in Sequences._fields))


def intervals(atlas: Atlas) -> Int[Tensor, "window head"]:
    """The interval of each window for each head: 5 is the fifth with the largest peaks."""
    places = _ranked(atlas).argsort(dim=0)
    return INTERVALS - places * INTERVALS // len(places)


def _shuffled(atlas: Atlas) -> Int[Tensor, " window"]:
    """The windows in a random order that depends on their tokens alone."""
    seed = atlas.provenance.config.seed
    hashes = [(each * 2654435761 + seed) % 2**61 for each in row_hashes(atlas.windows).tolist()]
    return torch.tensor(sorted(range(len(hashes)), key=hashes.__getitem__))


def _ranked(atlas: Atlas) -> Int[Tensor, "window head"]:
    """The windows of each head by their peaks, the largest first."""
    order = _shuffled(atlas)
    # Ties of half-precision peaks are broken by the random order.
    return order[atlas.peaks.float()[order].argsort(dim=0, descending=True, stable=True)]


def chosen_windows(atlas: Atlas) -> Int[Tensor, "head sequence"]:
    """The windows that are shown for each head; -1 where there is none."""
    ranked = _ranked(atlas)
    n, n_heads = ranked.shape
    starts = [
        -(-at * n // INTERVALS) for at in range(INTERVALS + 1)
    ]  # of the intervals in `ranked`
    place = _shuffled(atlas).argsort()
    found = torch.full((n_heads, STRONGEST + (INTERVALS - 1) * OF_EACH), -1)
    at = 0
    for start, stop in pairwise(starts):
        inside, most = ranked[start:stop], STRONGEST if start == 0 else OF_EACH
        if start:
            inside = inside.gather(0, place[inside].argsort(dim=0))
        shown = inside[:most]
        found[:, at : at + len(shown)] = shown.T
        at += most
    return found


@torch.no_grad()
def sample_sequences(
    model: LanguageModel,
    atlas: Atlas,
    *,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
) -> Sequences:
    """Run the chosen windows again, and keep the largest attention weights of their heads."""
    chosen = chosen_windows(atlas)
    windows = chosen[chosen >= 0].unique()
    shape = (*chosen.shape, atlas.windows.shape[1], KEYS)
    found = Sequences(
        chosen.to(torch.int32),
        torch.zeros(shape, dtype=torch.int16),
        torch.zeros(shape, dtype=torch.half),
    )
    n_done = 0
    if checkpoint is not None and (stored := checkpoint.load()) is not None:
        found, n_done = Sequences(*(stored[name] for name in Sequences._fields)), stored["n_done"]
    chunks = windows.split(ROWS)
    for number in range(int(n_done), len(chunks)):
        _add(model, atlas, chunks[number], found)
        if checkpoint is not None:
            checkpoint.save_sometimes(
                lambda n=number: {**found._asdict(), "n_done": torch.tensor(n + 1)}
            )
        if progress is not None:
            progress("sampling sequences", number + 1, len(chunks))
    if checkpoint is not None and int(n_done) < len(chunks):
        checkpoint.save({**found._asdict(), "n_done": torch.tensor(len(chunks))})
    return found


def _add(
    model: LanguageModel, atlas: Atlas, windows: Int[Tensor, " row"], found: Sequences
) -> None:
    """Fill in what these windows show, of all heads that show them."""
    by_layer: dict[int, list[int]] = {}
    for number, (layer, _) in enumerate(atlas.sites):
        by_layer.setdefault(layer, []).append(number)

    def keep(layer: int, _: Tensor, __: Tensor, weights: Tensor) -> None:
        numbers = by_layer[layer]
        # Where a head of this layer shows one of these windows.
        head, sequence, row = (found.window[numbers][..., None] == windows).nonzero().T
        heads = torch.tensor([atlas.sites[each][1] for each in numbers])[head]
        rows = weights[row.to(weights.device), heads.to(weights.device)].float()  # [shown, q, k]
        rows[..., 0] = 0
        best = rows.topk(min(KEYS, rows.shape[-1]), dim=-1)
        n = best.values.shape[-1]
        at = torch.tensor(numbers)[head], sequence
        found.keys[(*at, slice(None), slice(n))] = best.indices.to(torch.int16).cpu()
        shown = best.values.masked_fill(best.values < LEAST_WEIGHT, 0)
        found.weights[(*at, slice(None), slice(n))] = shown.half().cpu()

    layers = [model.layer(layer) for layer in by_layer]
    with recorded_queries(model.hf, layers, keep), fast_products():
        run_base(model.hf, atlas.windows[windows].to(model.device))


class Edge(NamedTuple):
    """A query's attention to a key of a sequence."""

    query: int
    key: int
    weight: float


def edges_of(keys: Int[Tensor, "pos 8"], weights: Float[Tensor, "pos 8"]) -> list[Edge]:
    """The kept weights of one sequence, in order of the queries."""
    query, place = (weights > 0).nonzero(as_tuple=True)
    columns = query.tolist(), keys[query, place].tolist(), weights[query, place].float().tolist()
    return [Edge(*each) for each in zip(*columns, strict=True)]
