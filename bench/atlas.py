"""Cost and reliability of an atlas: `python bench/atlas.py [--model NAME] [--corpus FILE ...]`.

Prints one JSON object. Builds an atlas with the default settings (65,536 tokens for what heads look
at, effects at one position in 16), or takes one with `--atlas FOLDER`. By default the text is the
model's own. Half an hour for the default model on two quiet cores.

- `minutes`, `extra_memory_gb`: of the build, with the lenses of the model if there are some; memory
  is the peak above the loaded model.
- `per_position_over_forward`: the cost of the exact effects of all heads at one position, with the
  attention of the whole text, over one forward pass of a window of 256 tokens with logits.
- `find_seconds`: the slowest of several questions to a loaded atlas; `load_seconds`: to load it.
- `split_half_effect`: the rank correlation over heads of the mean effects in the even and the odd
  windows. `split_half_tokens`: the overlap of the ten tokens that a head promotes most in each
  half, mean over heads; `_control`: of a head with other heads.
- `label_auroc`: labels are made of the even windows; how often a strong context of the head in the
  odd windows fits its label better than one of another head, mean over 40 random heads; `_worst`.
  `_control`: with the label of another head.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from effects import peak_memory, plain, seconds
from scipy.stats import spearmanr
from torch import Tensor

import saccade
from saccade.errors import SaccadeError
from saccade.interp.atlas.atlas import Atlas, load_atlas
from saccade.interp.atlas.atlas_config import AtlasConfig
from saccade.interp.atlas.atlas_text import SELF, read_text
from saccade.interp.atlas.build import Scan, build_atlas
from saccade.interp.atlas.finder import Query, find_heads
from saccade.interp.atlas.labels import label_auroc
from saccade.interp.atlas.records import Recorder
from saccade.interp.atlas.token_shares import token_shares
from saccade.interp.effects.replacement import Replacement
from saccade.interp.heads.model import LanguageModel
from saccade.interp.lenses.lens_set import Lenses, default_lens_path, load_lenses

LABELLED, TOP = 40, 10
CHUNKS = 2  # timed; each has 64 positions


def build(
    model: LanguageModel, corpus: str | list[str], lenses: Lenses | None, folder: Path
) -> dict[str, float]:
    """Build an atlas, watched."""
    start = time.perf_counter()
    with peak_memory() as peak:
        build_atlas(model, corpus, lenses=lenses, save_to=folder)
    return {"minutes": (time.perf_counter() - start) / 60, "extra_memory_gb": peak[0]}


def cost(model: LanguageModel, corpus: str | list[str], lenses: Lenses | None) -> dict[str, float]:
    """Seconds a position over seconds of a forward pass, in turn."""
    config = AtlasConfig(tokens=4 * CHUNKS * 256)
    text = read_text(model, corpus, config)
    sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    recorder = Recorder(
        model=model, sites=sites, replacement=Replacement.usual(model), lenses=lenses
    )
    forward, scan, n = [], 0.0, 0
    scanner = Scan(recorder, text, config)
    with torch.no_grad():
        for chunk in scanner.chunks[:CHUNKS]:
            forward.append(seconds(lambda ids=chunk.windows[:1]: plain(model, ids), repeats=3))
            start = time.perf_counter()
            scanner.add(chunk)
            scan += time.perf_counter() - start
            n += len(chunk.positions) * len(chunk.windows)
    return {"per_position_over_forward": scan / n / min(forward)}


def find(atlas: Atlas, folder: Path) -> dict[str, float]:
    """Each kind of question once, to an atlas that was just loaded."""
    token = atlas.show(atlas.records.promoted[0, 0, :1].tolist())[0]
    queries = [
        Query(token=token),
        Query(suppressed=token),
        Query(where=("kl>0.001", "previous>0.1")),
        Query(like=atlas.sites[-1]),
    ]
    if roles := atlas.tables.get("role_tests"):
        queries.append(Query(role=next(iter(roles))))
    if len(atlas.provenance.sources) > 1:
        queries.append(Query(matters_in=atlas.provenance.sources[0]))
    times = []
    for query in queries:
        start = time.perf_counter()
        opened = load_atlas(folder)
        loaded = time.perf_counter()
        find_heads(opened, query)
        times.append((loaded - start, time.perf_counter() - loaded))
    return {
        "load_seconds": max(load for load, _ in times),
        "find_seconds": max(search for _, search in times),
    }


def halves(atlas: Atlas) -> tuple[Tensor, Tensor]:
    """The records of the even and of the odd windows."""
    even = atlas.records.window % 2 == 0
    return even.nonzero()[:, 0], (~even).nonzero()[:, 0]


def agreement(atlas: Atlas) -> dict[str, float]:
    """Of the two halves of the text."""
    rows = halves(atlas)
    effects = [atlas.records.kl[each].mean(0) for each in rows]
    tops = []
    for each in rows:
        shares = token_shares(atlas, "promoted", rows=each)
        tops.append(shares.ids[shares.top(TOP)])  # [head, token]
    overlap = (tops[0][:, None, :, None] == tops[1][None, :, None, :]).any(3).float().mean(2)
    n = len(overlap)
    return {
        "split_half_effect": float(spearmanr(*(each.numpy() for each in effects)).statistic),
        "split_half_tokens": float(overlap.diagonal().mean()),
        "split_half_tokens_control": float((overlap.sum() - overlap.trace()) / (n * (n - 1))),
    }


def labels(atlas: Atlas) -> dict[str, float]:
    """Held-out contexts against labels, of random heads."""
    train, test = halves(atlas)
    heads = random.Random(0).sample(range(len(atlas.sites)), min(LABELLED, len(atlas.sites)))
    found = torch.tensor(label_auroc(atlas, heads, train=train, test=test))
    others = heads[1:] + heads[:1]
    control = torch.tensor(label_auroc(atlas, heads, train=train, test=test, labels_of=others))
    return {
        "label_auroc": float(found.mean()),
        "label_auroc_worst": float(found.min()),
        "label_auroc_control": float(control.mean()),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", help="a hub name, a folder or a GGUF file")
    parser.add_argument("--corpus", nargs="+", default=SELF, help="files of text")
    parser.add_argument("--atlas", type=Path, help="measure this atlas instead of building one")
    given = parser.parse_args()
    model = saccade.open_model(given.model)
    lenses = None
    if (path := default_lens_path(model)).exists():
        try:
            lenses = load_lenses(path, model)
        except SaccadeError as error:
            print(f"without lenses: {error}", flush=True)
    found: dict[str, Any] = {
        "model": Path(model.name).name,
        "threads": torch.get_num_threads(),
        "lenses": lenses is not None,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.atlas or Path(temporary) / "atlas"
        numbers = cost(model, given.corpus, lenses)
        if given.atlas is None:
            numbers |= build(model, given.corpus, lenses, folder)
        atlas = load_atlas(folder)
        atlas.check_model(model)
        numbers |= {**find(atlas, folder), **agreement(atlas), **labels(atlas)}
        found |= {"positions": len(atlas.records), "tokens": atlas.windows.numel()}
    print(json.dumps(found | {name: round(each, 3) for name, each in numbers.items()}, indent=2))


if __name__ == "__main__":
    main()
