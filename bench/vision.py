"""Speed of glimpses: `python bench/vision.py [--quick]`.

Prints one JSON object. Needs no data, takes about a minute on two cores. Both sides of a ratio
alternate in one run, and count by the fastest of some rounds.

- ``retina_over_loop``: glimpses per second over those of a loop that crops and downsamples the
  patches image by image; 256 images of 60 x 60, three scales of 12, and 8 glimpses of each image,
  as in the recipe `ram-cluttered60`: in sequence, because each depends on the one before. Both give
  the same patches, which is checked. Also reported for a single glimpse, which includes the whole
  cost of preparing the images.
- ``ram_step_over_floor``: the time of a training step of the recipe `ram-mnist` (forward, both
  losses, backward, clipping, Adam) over that of its matrix products and samplings alone, forward
  and backward, in a loop without anything else. ``steps`` has the same ratio of other recipes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from saccade.zoo.models.ram import Ram
from saccade.zoo.recipes.ram_recipes import ram_loss
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.sensors.retina import Retina, sum_images
from saccade.zoo.tasks.mnist import ImageBatch
from saccade.zoo.training.optim import make_optimiser, prepare_for_long_work

BATCH, SIZE, PATCH, SCALES, GLIMPSES = 256, 60, 12, 3, 8
RECIPES = ("ram-mnist", "ram-cluttered60", "ram-cluttered100")


def fastest(sides: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, float]:
    """Seconds of each side in its fastest round; sides alternate, the first round is a warm-up."""
    best = dict.fromkeys(sides, float("inf"))
    for number in range(rounds + 1):
        for name, call in sides.items():
            start = time.perf_counter()
            call()
            if number:
                best[name] = min(best[name], time.perf_counter() - start)
    return best


def look_by_loop(images: Tensor, centres: Tensor) -> Tensor:
    """Crop and downsample, image by image and scale by scale, at the nearest whole pixels."""
    patches = []
    for image, centre in zip(images, centres, strict=True):
        column, row = ((centre + 1) * SIZE / 2 - PATCH / 2).round().int().tolist()
        for scale in range(SCALES):
            side = PATCH * 2**scale
            around = (side - PATCH) // 2
            padded = functional.pad(image, (side, side, side, side))
            top, left = row - around + side, column - around + side
            cut = padded[top : top + side, left : left + side]
            patches.append(functional.avg_pool2d(cut[None], 2**scale)[0])
    return torch.stack(patches).view(len(images), SCALES, PATCH, PATCH)


def measure_retina(*, rounds: int) -> dict[str, float]:
    """The retina against the loop, on whole pixels, where both give the same patches."""
    torch.manual_seed(0)
    images = torch.rand(BATCH, SIZE, SIZE)
    corners = torch.randint(0, SIZE - PATCH, (BATCH, 2))  # row, column
    centres = (2 * corners.flip(1) + PATCH) / SIZE - 1
    retina = Retina(size=PATCH, n_scales=SCALES)
    ours = retina.look(images, centres[:, None])[:, 0]
    torch.testing.assert_close(ours, look_by_loop(images, centres), atol=1e-3, rtol=1e-3)

    def look_often() -> None:
        summed = sum_images(images)
        for _ in range(GLIMPSES):
            retina.look_again(summed, centres[:, None])

    def loop_often() -> None:
        for _ in range(GLIMPSES):
            look_by_loop(images, centres)

    seconds = fastest(
        {
            "retina": look_often,
            "loop": loop_often,
            "retina_once": lambda: retina.look(images, centres[:, None]),
            "loop_once": lambda: look_by_loop(images, centres),
        },
        rounds=rounds,
    )
    return {
        "ratio": round(seconds["loop"] / seconds["retina"], 2),
        "ratio_once": round(seconds["loop_once"] / seconds["retina_once"], 2),
        **{f"{name}_ms": round(1000 * value, 3) for name, value in seconds.items()},
    }


class Floor:
    """The matrix products and samplings of a training step, with nothing between them.

    The same shapes and layouts as in the step, with separate memory for every product.
    """

    def __init__(self, model: Ram, images: Tensor) -> None:
        self.model, self.images = model, images
        n, n_glimpses, d_patch = len(images), model.n_glimpses, model.retina.d_patch
        d_glimpse, d_hidden = model.of_patch.out_features, model.read.out_features
        many, later = n * n_glimpses, n * (n_glimpses - 1)
        self.centre = 0.8 * (2 * torch.rand(n, 1, 2) - 1)
        # x @ w.T for each glimpse, and again for all sampled locations: the location network.
        self.products = [
            *_products("forward", (n, d_patch, d_glimpse), n_glimpses),
            *_products("forward", (n, 2, d_glimpse), n_glimpses),
            *_products("forward", (n, d_glimpse, d_hidden), 2 * n_glimpses),
            *_products("forward", (n, d_hidden, d_hidden), 2 * n_glimpses - 1),
            *_products("forward", (n, d_hidden, d_glimpse), n_glimpses - 1),
            *_products("forward", (n, d_glimpse, 2), n_glimpses - 1),
            *_products("forward", (later, d_hidden, d_glimpse), 1),
            *_products("forward", (later, d_glimpse, 2), 1),
            *_products("forward", (later, d_hidden, 10), 1),  # the baseline
            *_products("forward", (many, d_hidden, 10), 1),  # the answers
            # g @ w: through time, then down through the glimpse network.
            *_products("input", (n, d_hidden, d_hidden), n_glimpses - 1),
            *_products("input", (many, d_hidden, d_hidden), 1),
            *_products("input", (many, d_hidden, d_glimpse), 2),
            *_products("input", (later, 2, d_glimpse), 1),
            *_products("input", (many, 10, d_hidden), 1),
            *_products("input", (later, d_glimpse, d_hidden), 1),  # of the policy, into the core
            # g.T @ x for every matrix.
            *_products("weight", (d_glimpse, many, d_patch), 1),
            *_products("weight", (d_glimpse, many, 2), 1),
            *_products("weight", (d_hidden, many, d_glimpse), 2),
            *_products("weight", (d_hidden, many, d_hidden), 1),
            *_products("weight", (d_hidden, later, d_hidden), 1),
            *_products("weight", (d_glimpse, later, d_hidden), 1),
            *_products("weight", (2, later, d_glimpse), 1),
            *_products("weight", (10, later, d_hidden), 1),
            *_products("weight", (10, many, d_hidden), 1),
        ]

    def __call__(self) -> None:
        """All of them once."""
        with torch.no_grad():
            summed = sum_images(self.images)
            for _ in range(self.model.n_glimpses):
                self.model.retina.look_again(summed, self.centre)
            for left, right, out in self.products:
                torch.mm(left, right, out=out)


def _products(
    kind: Literal["forward", "input", "weight"], shape: tuple[int, int, int], times: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Left side, right side and a buffer for their product, in torch's memory layout."""
    rows, inner, columns = shape
    made = []
    for _ in range(times):
        left = torch.rand(inner, rows).T if kind == "weight" else torch.rand(rows, inner)
        right = torch.rand(columns, inner).T if kind == "forward" else torch.rand(inner, columns)
        made.append((left, right, torch.empty(rows, columns)))
    return made


def measure_step(name: str, *, rounds: int) -> dict[str, float]:
    """A training step of a recipe against its floor."""
    torch.manual_seed(0)
    recipe = find_recipe(name)
    settings = recipe.settings
    model = recipe.restore(settings, {}).train()
    images = torch.rand(settings.batch, settings.size, settings.size)
    labels = torch.randint(0, 10, (settings.batch,))
    batch = ImageBatch(images, labels, torch.zeros(settings.batch, 1, 4))
    optimiser = make_optimiser(model, settings.training)

    def step() -> None:
        loss = ram_loss(model, batch, settings=settings).loss
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        clip_grad_norm_(model.parameters(), settings.training.clip)
        optimiser.step()

    seconds = fastest({"step": step, "floor": Floor(model, images)}, rounds=rounds)
    return {
        "ratio": round(seconds["step"] / seconds["floor"], 3),
        **{f"{side}_ms": round(1000 * value, 3) for side, value in seconds.items()},
    }


def measure(*, rounds: int) -> dict[str, Any]:
    """All ratios and their parts."""
    prepare_for_long_work()
    retina = measure_retina(rounds=max(3, rounds // 10))
    steps = {name: measure_step(name, rounds=rounds) for name in RECIPES}
    return {
        "retina_over_loop": retina["ratio"],
        "ram_step_over_floor": steps["ram-mnist"]["ratio"],
        "retina": retina,
        "steps": steps,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    found = measure(rounds=30 if parser.parse_args().quick else 200)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
