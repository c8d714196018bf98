"""Training speed of a Neural Turing Machine: `python bench/memory_ntm.py` or `bench/memory.py`.

``ntm_over_loop``: a training step of the recipe `ntm-copy` (forward, loss, backward, clipping,
update) on sequences of 10 vectors, against the same step as a loop over the sequences of the batch
that sums their gradients. Both give the same gradient, which is checked.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from saccade.zoo.recipes.memory_machines import bit_batch, bit_loss
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.tasks.memory_tasks import BitBatch
from saccade.zoo.training.optim import make_optimiser, prepare_for_long_work

LENGTH, ROUNDS = 10, 3


def ntm_over_loop(*, rounds: int = ROUNDS) -> dict[str, float]:
    """The ratio and its parts."""
    torch.manual_seed(0)
    recipe = find_recipe("ntm-copy")
    settings = recipe.settings
    model = recipe.restore(settings, {}).train()
    batch = bit_batch(settings, 0, batch=settings.batch, seed=0, length=LENGTH)
    optimiser = make_optimiser(model, settings.training)

    def backward_batched() -> None:
        bit_loss(model(batch.inputs), batch).backward()

    def backward_by_loop() -> None:
        for number in range(len(batch.inputs)):
            one = BitBatch(*(each[number : number + 1] for each in batch))
            (bit_loss(model(one.inputs), one) / len(batch.inputs)).backward()

    def step(backward: Callable[[], None]) -> float:
        start = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.training.clip)
        optimiser.step()
        return time.perf_counter() - start

    torch.testing.assert_close(
        _gradient(model, backward_batched), _gradient(model, backward_by_loop), atol=1e-6, rtol=1e-3
    )
    sides = {"batched": backward_batched, "loop": backward_by_loop}
    seconds = {name: [] for name in sides}
    for _ in range(rounds):
        for name, backward in sides.items():
            seconds[name].append(step(backward))
    best = {name: min(times) for name, times in seconds.items()}
    return {
        "ratio": round(best["loop"] / best["batched"], 2),
        **{f"{name}_ms": round(1000 * value, 2) for name, value in best.items()},
    }


def _gradient(model: nn.Module, backward: Callable[[], None]) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


if __name__ == "__main__":
    prepare_for_long_work()
    print(json.dumps({"ntm_over_loop": ntm_over_loop()}, indent=2))
