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
- `generate_over_plain`: greedy generation with the effects of all heads on each token, over greedy
  generation with a cache by `transformers`, a token, behind a prompt of 20 tokens.
- `extra_memory_gb_512`: the peak above the loaded model while effects are measured.
- `attribution_over_forward_20`: attribution of one prediction to all heads at all positions, with
  the exact effects at the last one; `gradient_over_forward_20`: without them.
- `three_points_fidelity_mean`, `_worst_layer`: the correlation of first-order predictions with the
  exact effect, the `ablation` metric of `saccade lens fidelity --gradients 3`: the change of all
  logits when a head is set to its mean, over every third head of 10 layers, three points on the
  way from activation to mean; `half_way_fidelity_*`, `gradient_fidelity_*`: one point, half-way or
  at the text. Text of the model's own.
- `first_order_fidelity_mean`, `_worst_layer`: the same question for the overview of positions and
  heads, whose one backward pass is for one score: the correlation of the gradient with the exact
  effect on that score, over heads and all positions but the first; of 11 layers, each
  the mean of four prompts. `map_fidelity_mean`, `_worst_layer`: with the exact effects at the last
  position, as the map is shown. `with_first_fidelity_mean`: the gradient, the first
  position included.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from torch import Tensor

import saccade
from saccade.interp.effects.attribution import attribute, with_exact_end
from saccade.interp.effects.effects import EVERY_KIND, measure_effects
from saccade.interp.effects.positions import HeadAt, position_effects
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target, find_target
from saccade.interp.heads import onednn
from saccade.interp.heads.model import LanguageModel
from saccade.interp.heads.taps import HeadLayer
from saccade.interp.lenses.self_text import write_corpus
from saccade.interp.readings.generation import generate
from saccade.interp.studies.fidelity.ablation_check import check_ablation, gauss_legendre, rules_of
from saccade.interp.studies.fidelity.stage import Stage

TEXT = Path(__file__).resolve().parent.parent / "docs" / "lenses.md"
REPEATS = 7
N_WINDOWS, WINDOW, FIDELITY_LAYERS, HEAD_EVERY = 8, 32, 10, 3
NEW_TOKENS = 16


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


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """At its end, the list has the peak memory of the block above that at its start, in GB."""
    process, done = psutil.Process(), threading.Event()
    before = peak = process.memory_info().rss
    found: list[float] = []

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.002):
            peak = max(peak, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
        found.append((peak - before) / 1e9)


def memory(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """Peak memory while effects are measured, above the loaded model."""
    ids = prompt(model, 512)
    with peak_memory() as found:
        measure_effects(model, ids, replacement=mean)
    return {"extra_memory_gb_512": found[0]}


PROMPTS = (
    (
        (
            "Water boils at a temperature of one hundred degrees Celsius, and it freezes at a "
            "temperature of"
        ),
        "zero",
        "one",
    ),
    ("hot is to cold as big is to", "small", "large"),
    ("def add(a, b):\n    return a +", "b", "a"),
    ("January, February, March, April, May, June,", "July", "August"),
)
N_LAYERS = 11


def attribution(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """The map of positions and heads over one forward pass."""
    ids = prompt(model, 20)
    target = Target(*plain(model, ids)[0, -1].topk(2).indices.tolist())
    gradient = partial(attribute, model, ids, target, replacement=mean)

    def whole() -> None:
        with_exact_end(model, ids, gradient()[0], replacement=mean)

    forward = seconds(partial(plain, model, ids))
    return {
        "attribution_over_forward_20": seconds(whole) / forward,
        "gradient_over_forward_20": seconds(gradient) / forward,
    }


def fidelity(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """How far the map agrees with exact effects."""
    last = len(model.layers) - 1
    layers = [model.layers[round(i * last / (N_LAYERS - 1))] for i in range(N_LAYERS)]
    found: dict[str, list[list[float]]] = {"gradient": [], "map": [], "all": []}
    for text, token, against in PROMPTS:
        ids, target = model.encode(text), find_target(model, text, token, against)
        (gradient,) = attribute(model, ids, target, replacement=mean)
        filled = with_exact_end(model, ids, gradient, replacement=mean)
        heads = [
            HeadAt(at.index, head, (position,))
            for at in layers
            for position in range(ids.shape[1])
            for head in range(at.n_heads)
        ]
        exact = position_effects(model, ids, heads, replacement=mean, target=target)
        by_layer = {
            at.index: torch.tensor(
                [exact[head].on_token for head in heads if head.layer == at.index]
            ).view(-1, at.n_heads)
            for at in layers
        }
        for name, each, start in (
            ("gradient", gradient, 1),
            ("map", filled, 1),
            ("all", gradient, 0),
        ):
            found[name].append(
                [
                    correlation(each.by_layer[layer][start:], truth[start:])
                    for layer, truth in by_layer.items()
                ]
            )
    by_name = {name: torch.tensor(rows).mean(0) for name, rows in found.items()}
    return {
        "first_order_fidelity_mean": float(by_name["gradient"].mean()),
        "first_order_fidelity_worst_layer": float(by_name["gradient"].min()),
        "map_fidelity_mean": float(by_name["map"].mean()),
        "map_fidelity_worst_layer": float(by_name["map"].min()),
        "with_first_fidelity_mean": float(by_name["all"].mean()),
    }


def first_order(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """First-order predictions of the change of all logits, checked by `saccade lens fidelity`."""
    del mean  # a stage has the mean of its own text, as the command has
    n_tokens = N_WINDOWS * (WINDOW + 1)
    windows = write_corpus(model, n_tokens=n_tokens, window=WINDOW, seed=1).windows[:N_WINDOWS]
    last = len(model.layers) - 1
    rules = (*rules_of(1), gauss_legendre(3))
    rows = []
    for place in range(FIDELITY_LAYERS):
        layer = model.layers[round(place * last / (FIDELITY_LAYERS - 1))].index
        heads = range(0, model.layer(layer).n_heads, HEAD_EVERY)
        checks = check_ablation(Stage.of(model, windows, layer), {}, rules=rules, heads=heads)
        rows.append([float(checks[rule.name].correlations()[0].mean()) for rule in rules])
        print(f"layer {layer}: {rows[-1]}", file=sys.stderr)
    found = torch.tensor(rows).T
    names = ("gradient", "half_way", "three_points")
    return {
        f"{name}_fidelity_{what}": float(value)
        for name, row in zip(names, found, strict=True)
        for what, value in (("mean", row.mean()), ("worst_layer", row.min()))
    }


def correlation(a: Tensor, b: Tensor) -> float:
    """Of two maps."""
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]).double())[0, 1])


def generation(model: LanguageModel, mean: Replacement) -> dict[str, float]:
    """Generation with effects over generation without, seconds a token."""
    ids = prompt(model, 20)
    assert model.tokenizer is not None, "the prompt was encoded"
    text = str(model.tokenizer.decode(ids[0]))
    n_written = len(list(generate(model, text, tokens=NEW_TOKENS, replacement=mean)))
    with_cache = partial(
        model.hf.generate,
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n_written,
        min_new_tokens=n_written,
        do_sample=False,
    )
    ours = partial(_last_of, model, text, n_written, mean)
    # In turn, so that other work on the machine slows both.
    times = [(seconds(ours, repeats=1), seconds(with_cache, repeats=1)) for _ in range(REPEATS)]
    return {"generate_over_plain": min(a for a, _ in times) / min(b for _, b in times)}


def _last_of(model: LanguageModel, text: str, n_tokens: int, mean: Replacement) -> object:
    return list(generate(model, text, tokens=n_tokens, replacement=mean))[-1]


PARTS = {
    "memory": memory,
    "cost": cost,
    "loop": loop,
    "generation": generation,
    "attribution": attribution,
    "fidelity": fidelity,
    "first-order": first_order,
}


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
