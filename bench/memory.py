"""Training speed of memory models and speed of search: `python bench/memory.py [--quick]`.

Prints one JSON object. Needs bAbI (SACCADE_DATA), takes a minute or two on two cores. Both sides of
a ratio alternate in one run, are checked to compute the same, and count by their fastest round.

- ``ntm_over_loop``: see `memory_ntm.py`.
- ``memn2n_over_loop``: questions per second of the recipe `memn2n-babi` in training (forward, loss,
  backward, clipping, Adam), over those of the same model when each story of a batch is processed
  alone, without padding, before the optimiser's step.
- ``prefix_beam_over_python``: see `memory_beam.py`.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import torch
from memory_beam import prefix_beam_over_python
from memory_ntm import ntm_over_loop
from torch import nn

from saccade.zoo.recipes.question_answering import answer_loss
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.tasks.babi import Stories, StoryBatch, read_babi, story_vocabulary
from saccade.zoo.training.optim import make_optimiser, prepare_for_long_work


class MemN2NSides:
    """Batches of a recipe, and the two ways to process them."""

    def __init__(self, *, n_batches: int) -> None:
        recipe = find_recipe("memn2n-babi")
        self.settings = replace(recipe.settings, n_tries=1)
        train = read_babi(self.settings.size, tasks=self.settings.tasks).train
        vocabulary = story_vocabulary(train)
        stories = Stories.of(train, vocabulary, most=self.settings.n_facts)
        torch.manual_seed(0)
        self.model = recipe.restore(self.settings, {"words": vocabulary.words}).eval()
        self.optimiser = make_optimiser(self.model, self.settings.training)
        order = torch.randperm(len(stories))
        parts = order.split(self.settings.batch)[:n_batches]
        self.together = [stories.batch(rows) for rows in parts]
        self.alone = [[stories.batch(row[None]) for row in rows] for rows in parts]

    def backward(self, batch: StoryBatch) -> float:
        """The gradient of a whole batch."""
        loss = answer_loss(self.model, batch).loss
        loss.backward()
        return loss.item()

    def backward_by_loop(self, stories: list[StoryBatch]) -> float:
        """The same gradient, story by story."""
        losses = []
        for story in stories:
            loss = answer_loss(self.model, story).loss / len(stories)
            loss.backward()
            losses.append(loss.item())
        return sum(losses)

    def step(self, *, is_loop: bool) -> float:
        """One training step for each batch; returns the seconds."""
        start = time.perf_counter()
        for together, alone in zip(self.together, self.alone, strict=True):
            self.optimiser.zero_grad(set_to_none=True)
            if is_loop:
                self.backward_by_loop(alone)
            else:
                self.backward(together)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.training.clip)
            self.optimiser.step()
        return time.perf_counter() - start

    def check(self) -> None:
        """Both ways give the same gradient; eval mode, because noise and dropout would differ."""
        found = []
        for way, batch in ((self.backward, self.together), (self.backward_by_loop, self.alone)):
            self.model.zero_grad(set_to_none=True)
            way(batch[0])
            found.append([weight.grad for weight in self.model.parameters()])
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-3)


def memn2n_over_loop(*, rounds: int = 5, n_batches: int = 8) -> dict[str, float]:
    """The ratio, and milliseconds per step of each side."""
    sides = MemN2NSides(n_batches=n_batches)
    sides.check()
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(rounds):
        for is_loop, times in seconds.items():
            times.append(sides.step(is_loop=is_loop))
    batched, loop = (1000 * min(seconds[side]) / n_batches for side in (False, True))
    return {
        "ratio": round(loop / batched, 2),
        "batched_ms": round(batched, 2),
        "loop_ms": round(loop, 2),
    }


def measure(*, rounds: int) -> dict[str, Any]:
    """All ratios and their parts."""
    prepare_for_long_work()
    parts = {
        "ntm": ntm_over_loop(),
        "memn2n": memn2n_over_loop(rounds=rounds),
        "prefix_beam": prefix_beam_over_python(),
    }
    names = ("ntm_over_loop", "memn2n_over_loop", "prefix_beam_over_python")
    return {
        **{name: part["ratio"] for name, part in zip(names, parts.values(), strict=True)},
        **parts,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    print(json.dumps(measure(rounds=2 if parser.parse_args().quick else 8), indent=2))


if __name__ == "__main__":
    main()
