"""Training, judging and watching DRAM."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.trace.trace import ImageTrace
from saccade.zoo.models.dram import Dram, dram_loss, from_left, read_objects, read_together
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.seeing import gaze, held_out, one_image
from saccade.zoo.sensors.retina import Retina
from saccade.zoo.tasks.mnist import ImageBatch, read_mnist
from saccade.zoo.tasks.scenes import Scene, Scenes
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.dram import DramSettings

N_DIGITS = 2
END, NEVER = 10, -1  # the answer that says: no more; and one that is never given
N_SUMS = 19
N_PASSES = 10  # for answers averaged over drawn paths


def dram_job(settings: DramSettings, data: Path | None) -> Job:
    """New scenes at every step; places are drawn ever closer to where the policy points."""
    train, seed = read_mnist("train", data), settings.training.seed
    scene, valid = scene_of(settings), held_out("valid", scene_of(settings), data)

    def fall(model: nn.Module, step: int) -> None:
        way = min(1.0, step / max(1, settings.training.steps))
        _of(model).set_std(settings.first_std + way * (settings.last_std - settings.first_std))

    def loss(model: nn.Module, batch: ImageBatch) -> LossOut:
        looked = _of(model).look(batch.images, n_samples=settings.n_samples, is_drawn=True)
        out = dram_loss(
            looked,
            targets(batch.labels, settings),
            early_weight=settings.early_weight,
            discount=settings.discount,
            reward_weight=settings.reinforce_weight,
        )
        return LossOut(out.loss, n=len(batch.labels), logged={"bound": out.bound})

    return Job(
        model=dram_model(settings),
        batches=lambda epoch: Scenes(train, scene, batch=settings.batch, seed=seed, epoch=epoch),
        loss=loss,
        validate=lambda model: errors(
            valid, lambda images: from_left_of(_of(model), images), settings=settings
        ),
        score="error",
        is_better="less",
        config=settings.training,
        before_step=fall,
        # Adam makes steps of full size out of the noise of the policy's gradient.
        rates={"mean.": settings.policy_rate},
    )


def dram_model(settings: DramSettings) -> Dram:
    """The untrained model."""
    is_sum = settings.asks == "sum"
    return Dram(
        size=(settings.size, settings.size),
        n_classes=N_SUMS if is_sum else END + 1,
        retina=Retina(size=settings.patch, n_scales=settings.n_scales),
        n_objects=1 if is_sum else N_DIGITS + 1,
        n_glimpses=settings.n_glimpses,
        is_backward=settings.is_backward,
        d_hidden=settings.d_hidden,
        std=settings.first_std,
        reach=settings.reach,
    )


def scene_of(settings: DramSettings) -> Scene:
    """What the images show."""
    return Scene(
        size=settings.size, n_digits=N_DIGITS, n_clutter=settings.n_clutter, asks=settings.asks
    )


def targets(
    labels: Int[Tensor, "batch ..."], settings: DramSettings
) -> Int[Tensor, "batch object"]:
    """What is to be answered: the digits in the order of reading and "no more", or the sum."""
    if settings.asks == "sum":
        return labels[:, None]
    ordered = labels.flip(1) if settings.is_backward else labels
    return torch.cat([ordered, torch.full_like(labels[:, :1], END)], dim=1)


def evaluate_dram(run: OpenRun, data: Path | None) -> dict[str, float]:
    """``error`` is by one pass at the policy's means, ``error_averaged`` over ten drawn ones.

    Two digits are right if they are those of the scene, as in the paper's 55 combinations;
    ``error_ordered`` asks for their order, too. Several runs are averaged and then multiplied,
    forward and backward ones alike, and have but that one figure.
    """
    settings, readers = run.settings, [_of(model) for model in run.models]
    test = held_out("test", scene_of(settings), data)
    several = errors(
        test, lambda images: read_together(readers, images, n_samples=N_PASSES), settings=settings
    )
    if len(readers) > 1:
        return several
    alone = errors(test, lambda images: from_left_of(readers[0], images), settings=settings)
    return {**alone, "error_averaged": several["error"]}


def from_left_of(
    model: Dram, images: Float[Tensor, "batch height width"]
) -> Float[Tensor, "batch object d_class"]:
    """The answers of one pass, from left to right whichever way it reads."""
    return from_left(model(images)) if model.is_backward else model(images)


def errors(
    scenes: Iterable[ImageBatch],
    answer: Callable[[Float[Tensor, "batch height width"]], Float[Tensor, "batch object d_class"]],
    *,
    settings: DramSettings,
) -> dict[str, float]:
    """Per cent of scenes that are not read right; answers are from left to right."""
    is_sum = settings.asks == "sum"
    n, wrong, disordered = 0, 0, 0
    for batch in scenes:
        wanted = batch.labels.view(len(batch.labels), -1).tolist()
        # A sum may be ten, and is always said: nothing ends it.
        read = read_objects(answer(batch.images), end=NEVER if is_sum else END)
        for said, right in zip(read, wanted, strict=True):
            wrong += sorted(said) != sorted(right)
            disordered += list(said) != right
        n += len(wanted)
    found = {"error": 100 * wrong / n}
    return found if is_sum else {**found, "error_ordered": 100 * disordered / n}


def trace_dram(run: OpenRun, text: str) -> list[ImageTrace]:
    """Where each glimpse was, what it showed, and what would have been answered after it."""
    model, settings = _of(run.model), run.settings
    image = one_image(text, held_out("test", scene_of(settings), None))
    looked = model.look(image, is_drawn=False)
    return [
        gaze(
            model.retina,
            image[0],
            looked.centres[0, 0],
            steps=_labels(looked.logits[0, 0].flatten(0, 1), settings),
            title=f"{run.recipe.name}, image {text.strip()}",
        )
    ]


def _labels(logits: Float[Tensor, "glimpse d_class"], settings: DramSettings) -> tuple[str, ...]:
    """What it would answer after each glimpse."""
    is_end = settings.asks == "digits"
    best = logits.softmax(-1).max(-1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(
        f"{'no more' if is_end and said == END else said} {share:.0%}" for said, share in pairs
    )


def _of(model: nn.Module) -> Dram:
    """The model itself."""
    assert isinstance(model, Dram), f"no DRAM but {type(model).__name__}"
    return model
