"""Speed of prefix beam search: `python bench/memory_beam.py`, or `bench/memory.py`.

``prefix_beam_over_python``: prefix beam search over 64 recordings of 60 steps and 30 symbols,
against the paper's algorithm in plain Python, one recording at a time, with a dictionary of texts.
Both find the same texts with the same probabilities, which is checked.
"""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict

import torch
from torch import Tensor

from saccade.zoo.decoding.ctc_search import prefix_beam
from saccade.zoo.objectives.ctc_loss import BLANK
from saccade.zoo.training.optim import prepare_for_long_work

N, STEPS, SYMBOLS, SIZE, ROUNDS = 64, 60, 30, 16, 3
NEVER = -math.inf


def add_logs(a: float, b: float) -> float:
    """``log(exp(a) + exp(b))``."""
    if a < b:
        a, b = b, a
    return a if b == NEVER else a + math.log1p(math.exp(b - a))


def python_prefix_beam(
    rows: list[list[float]], *, size: int
) -> list[tuple[tuple[int, ...], float]]:
    """The texts of one recording and their log-probabilities, best first.

    Args:
        rows: Log-probabilities of all symbols at each step.
    """
    texts: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, NEVER)}
    for row in rows:
        new: defaultdict[tuple[int, ...], list[float]] = defaultdict(lambda: [NEVER, NEVER])
        for text, (blank, symbol) in texts.items():
            total = add_logs(blank, symbol)
            here = new[text]
            here[0] = add_logs(here[0], total + row[BLANK])
            if text:
                here[1] = add_logs(here[1], symbol + row[text[-1]])
            for each in range(len(row)):
                if each == BLANK:
                    continue
                longer = new[(*text, each)]
                before = blank if text and text[-1] == each else total
                longer[1] = add_logs(longer[1], before + row[each])
        best = sorted(new.items(), key=lambda entry: -add_logs(*entry[1]))[:size]
        texts = {text: (blank, symbol) for text, (blank, symbol) in best}
    return sorted(((t, add_logs(*p)) for t, p in texts.items()), key=lambda found: -found[1])


def peaked(n: int, steps: int, symbols: int) -> Tensor:
    """Outputs like those of a trained network: mostly blank, peaks for symbols, some noise."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(n, steps, symbols, generator=generator)
    chosen = torch.randint(1, symbols, (n, steps), generator=generator)
    is_blank = torch.rand(n, steps, generator=generator) < 0.7
    chosen[is_blank] = BLANK
    logits.scatter_add_(2, chosen[:, :, None], torch.full((n, steps, 1), 5.0))
    return logits.log_softmax(-1)


def prefix_beam_over_python(*, rounds: int = ROUNDS) -> dict[str, float]:
    """The ratio and its parts."""
    log_probs = peaked(N, STEPS, SYMBOLS)
    mask = torch.ones(N, STEPS, dtype=torch.bool)
    rows = log_probs.tolist()
    best: dict[str, float] = {"batched": math.inf, "python": math.inf}
    for _ in range(rounds):
        start = time.perf_counter()
        ours = prefix_beam(log_probs, mask, size=SIZE)
        middle = time.perf_counter()
        theirs = [python_prefix_beam(each, size=SIZE)[0] for each in rows]
        end = time.perf_counter()
        best = {
            "batched": min(best["batched"], middle - start),
            "python": min(best["python"], end - middle),
        }
        for (found,), (text, log_prob) in zip(ours, theirs, strict=True):
            assert tuple(found.ids) == text, "both searches find the same text"
            assert math.isclose(found.log_prob, log_prob, rel_tol=1e-3), "as likely"
    return {
        "ratio": round(best["python"] / best["batched"], 2),
        **{f"{name}_ms": round(1000 * value, 2) for name, value in best.items()},
    }


if __name__ == "__main__":
    prepare_for_long_work()
    print(json.dumps({"prefix_beam_over_python": prefix_beam_over_python()}, indent=2))
