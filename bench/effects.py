"""Cost of exact effects: `python bench/effects.py [--model NAME] [--parts cost loop memory ...]`.

Prints one JSON object. Every time is a ratio within this run: to the plain forward pass of the same
prompt with logits, as `transformers` computes it. The prompt is the beginning of a text of the
repository, cut to 20 or 512 tokens. Takes about three minutes for the default model.

- `effects_over_forward_20`, `_512`: effects of all heads on the whole next-token distribution, with
  KL, direct parts and the ten most promoted and suppressed tokens of each head.
- `with_all_parts_over_forward_20`: the same with attention layers and feed-forward parts.
- `loop_over_effects_20`: one forward pass with a hook for each head, as patching code does it, over
  ours.
- `without_onednn_20`: `effects_over_forward_20` where MKL computes all products.
- `extra_memory_gb_512`: the peak above the loaded model while effects are measured.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from torch import Tensor

import saccade
from saccade.interp.effects.effects import EVERY_KIND, measure_effects
from saccade.interp.effects.replacement import Replacement
from saccade.interp.heads import onednn
from saccade.interp.heads.model import LanguageModel
from saccade.interp.heads.taps import HeadLayer

TEXT = Path(__file__).resolve().parent.parent / "docs" / "lenses.md"
REPEATS = 7


def seconds(run: Callable[[], object], repeats: int = REPEATS) -> float:
    """The fastest of several runs, after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def prompt(model: LanguageModel, n_tokens: int) -> Tensor:
    """The first tokens of a text."""
    return model.encode(TEXT.read_text(encoding="utf-8")[: 8 * n_tokens])[:, :n_tokens]


def plain(model: LanguageModel, ids: Tensor) -> Tensor:
    """The forward pass that everything is compared with."""
    with torch.no_grad():
        return model.hf(input_ids=ids, use_cache=False).logits


def cost(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """Effects of all heads over one forward pass."""
    found = {}
    for n_tokens in (20, 512):
        ids = prompt(model, n_tokens)
        effects = partial(measure_effects, model, ids, replacement=mean)
        forward = seconds(partial(plain, model, ids))
        found[f"effects_over_forward_{n_tokens}"] = seconds(effects) / forward
        if n_tokens == 20:
            every = seconds(partial(effects, kinds=EVERY_KIND)) / forward
            found["with_all_parts_over_forward_20"] = every
            with mock.patch.object(onednn, "_is_faster", return_value=False):
                found["without_onednn_20"] = seconds(effects) / forward
    return found


def loop(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """One forward pass with a hook for each head, over ours."""
    ids = prompt(model, 20)
    start = time.perf_counter()
    for at in model.layers:
        for head in range(at.n_heads):
            value = mean.heads[at.index][head]
            with at.projection.register_forward_pre_hook(partial(_replace, at, head, value)):
                plain(model, ids)
    looped = time.perf_counter() - start
    ours = seconds(partial(measure_effects, model, ids, replacement=mean))
    return {"loop_over_effects_20": looped / ours}


def _replace(at: HeadLayer, head: int, value: Tensor, _: Any, args: tuple[Tensor]) -> tuple[Tensor]:
    z = args[0].clone()
    z[..., -1, head * at.d_head : (head + 1) * at.d_head] = value
    return (z,)


def memory(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """Peak memory while effects are measured, above the loaded model."""
    process, peaks, done = psutil.Process(), [0], threading.Event()
    ids = prompt(model, 512)

    def watch() -> None:
        while not done.is_set():
            peaks[0] = max(peaks[0], process.memory_info().rss)
            time.sleep(0.002)

    before = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    measure_effects(model, ids, replacement=mean)
    done.set()
    watcher.join()
    return {"extra_memory_gb_512": (peaks[0] - before) / 1e9}


PARTS = {"memory": memory, "cost": cost, "loop": loop}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", help="a hub name, a folder or a GGUF file")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    given = parser.parse_args()
    model = saccade.open_model(given.model)
    mean = Replacement.usual(model)
    found: dict[str, Any] = {"model": Path(model.name).name, "threads": torch.get_num_threads()}
    for part in given.parts:
        found |= {name: round(value, 3) for name, value in PARTS[part](model, mean).items()}
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
