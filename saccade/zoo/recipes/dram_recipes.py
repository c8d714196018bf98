"""Recipes `dram-*`: two digits on a canvas are located and classified one by one, or added.

Ba et al., 2015 (https://arxiv.org/abs/1412.7755), section 5.1, tables 1 and 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.trace.trace import ImageTrace
from saccade.zoo.models.dram import Dram, dram_loss, from_left, read_objects, read_together
from saccade.zoo.recipes.mnist_scenes import gaze, held_out, one_image
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.sensors.retina import Retina
from saccade.zoo.tasks.mnist import ImageBatch, Scene, Scenes, read_mnist
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import (
    Batch,
    Few,
    FewOrNone,
    NonNegative,
    Share,
    Side,
    TrainConfig,
    Width,
)

PAPER = "https://arxiv.org/abs/1412.7755"
TRAINING = TrainConfig(
    steps=24_000,
    minutes=58.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=500,
    clip=1.0,
    validate_steps=2000,
    precision="bfloat16",
)
# A sum carries little information about either digit. With Adam (`--set training.optimiser=adam`)
# nothing is learnt from it in 5,500 steps; with Muon the error begins to fall after 2,500.
BY_MUON = replace(TRAINING, optimiser="muon")
N_DIGITS = 2
END, NEVER = 10, -1  # the class "no more"; and one that is never predicted
N_SUMS = 19
N_PASSES = 10  # for answers averaged over sampled paths


@dataclass(frozen=True, kw_only=True)
class DramSettings:
    """The scenes, the target and the glimpses."""

    asks: Literal["digits", "sum"] = "digits"
    """Both digits from left to right, then "no more"; or their sum."""
    is_backward: bool = False
    """Read from right to left; runs of both directions make an ensemble."""
    size: Side = 100
    """Side length of the image in pixels; a digit has 28."""
    n_clutter: FewOrNone = 8
    """Pieces of other digits in each image, 8 x 8 pixels each."""
    patch: Side = 14
    """Side length of a glimpse in pixels."""
    n_scales: Few = 3
    """Number of scales of a glimpse, each twice as wide as the one before."""
    n_glimpses: Few = 3
    """Glimpses before each answer."""
    reach: Share = 0.8
    """Maximum distance of a glimpse from the centre; 1 is the edge of the image."""
    first_std: NonNegative = 0.2
    """Initial standard deviation of sampled locations around the policy's mean, in half image
    sides."""
    last_std: NonNegative = 0.05
    """The same at the end of training; it decreases linearly."""
    n_samples: Few = 1
    """Sampled paths per image for the estimate of the bound."""
    early_weight: NonNegative = 0.5
    """Weight of the earlier answers for a digit, relative to the last one; the paper's: 0."""
    discount: Share = 0.5
    """Discount of later rewards for a glimpse; the paper's: 1."""
    reinforce_weight: NonNegative = 0.1
    """Weight of the policy loss, relative to that of the answers."""
    policy_rate: Share = 0.1
    """Factor on the learning rate of the emission network."""
    d_hidden: Width = 192
    """Units of a layer."""
    batch: Batch = 128
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class DramRecipe(Recipe):
    """DRAM on scenes with two digits; forward and backward runs can be combined."""

    reads_files = True

    system: str = "dram"
    task: str = "scenes"
    metric: str = "error"
    is_better: Literal["less", "more"] = "less"
    other_metrics: Mapping[str, float | None] = field(
        default_factory=lambda: {"error_averaged": None}
    )
    note: str = "The paper does not specify its noise: ours are 8 pieces of other digits."
    may_differ: frozenset[str] = frozenset({"is_backward"})
    gallery: tuple[str, ...] = ("0", "1")

    def build(self, settings: DramSettings, data: Path | None) -> Job:
        """New scenes at every step; the variance of sampled locations decreases."""
        train, seed = read_mnist("train", data), settings.training.seed
        scene, valid = _scene(settings), held_out("valid", _scene(settings), data)

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
            model=self.restore(settings, {}),
            batches=lambda epoch: Scenes(
                train, scene, batch=settings.batch, seed=seed, epoch=epoch
            ),
            loss=loss,
            validate=lambda model: errors(
                valid, lambda images: _read_alone(_of(model), images), settings=settings
            ),
            score="error",
            is_better="less",
            config=settings.training,
            before_step=fall,
            # Adam turns the noise of the policy gradient into steps of full size.
            rates={"mean.": settings.policy_rate},
        )

    def restore(self, settings: DramSettings, kept: Mapping[str, Any]) -> Dram:
        """The untrained model."""
        del kept
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

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """``error``: one pass at the policy's means, ``error_averaged``: ten sampled passes.

        Two digits are right if they are those of the scene, as in the paper's 55 combinations;
        ``error_ordered`` also requires their order. Several runs are averaged and then multiplied,
        forward and backward ones alike, and have no ``error_averaged`` of their own.
        """
        settings, readers = run.settings, [_of(model) for model in run.models]
        test = held_out("test", _scene(settings), data)
        several = errors(test, lambda images: _read_together(readers, images), settings=settings)
        if len(readers) > 1:
            return several
        alone = errors(test, lambda images: _read_alone(readers[0], images), settings=settings)
        return {**alone, "error_averaged": several["error"]}

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[ImageTrace]:
        """The location and the patch of each glimpse, and the prediction after it."""
        model, settings = _of(run.model), run.settings
        image = one_image(text, held_out("test", _scene(settings), data))
        looked = model.look(to_device_of(model, image), is_drawn=False)
        return [
            gaze(
                model.retina,
                image[0],
                looked.centres[0, 0],
                steps=_labels(looked.logits[0, 0].flatten(0, 1), settings),
                title=f"{run.recipe.name}, image {text.strip()}",
            )
        ]


def _scene(settings: DramSettings) -> Scene:
    """The scenes of the settings."""
    return Scene(
        size=settings.size, n_digits=N_DIGITS, n_clutter=settings.n_clutter, asks=settings.asks
    )


def targets(
    labels: Int[Tensor, "batch ..."], settings: DramSettings
) -> Int[Tensor, "batch object"]:
    """The target: the digits in reading order and "no more", or the sum."""
    if settings.asks == "sum":
        return labels[:, None]
    ordered = labels.flip(1) if settings.is_backward else labels
    return torch.cat([ordered, torch.full_like(labels[:, :1], END)], dim=1)


def _read_alone(
    model: Dram, images: Float[Tensor, "batch height width"]
) -> Float[Tensor, "batch object d_class"]:
    """The answers of one pass, from left to right in either reading direction."""
    logits = model(to_device_of(model, images))
    return from_left(logits) if model.is_backward else logits


def _read_together(
    models: list[Dram], images: Float[Tensor, "batch height width"]
) -> Float[Tensor, "batch object d_class"]:
    """The answers of several models together, each averaged over sampled paths."""
    return read_together(models, to_device_of(models[0], images), n_samples=N_PASSES)


def errors(
    scenes: Iterable[ImageBatch],
    answer: Callable[[Float[Tensor, "batch height width"]], Float[Tensor, "batch object d_class"]],
    *,
    settings: DramSettings,
) -> dict[str, float]:
    """Error on scenes in per cent; answers are from left to right."""
    is_sum = settings.asks == "sum"
    n, wrong, disordered = 0, 0, 0
    for batch in scenes:
        wanted = batch.labels.view(len(batch.labels), -1).tolist()
        # A sum may be ten, the id of "no more": sums have no end symbol.
        read = read_objects(answer(batch.images), end=NEVER if is_sum else END)
        for said, right in zip(read, wanted, strict=True):
            wrong += sorted(said) != sorted(right)
            disordered += list(said) != right
        n += len(wanted)
    found = {"error": 100 * wrong / n}
    return found if is_sum else {**found, "error_ordered": 100 * disordered / n}


def _labels(logits: Float[Tensor, "glimpse d_class"], settings: DramSettings) -> tuple[str, ...]:
    """The prediction after each glimpse."""
    is_end = settings.asks == "digits"
    best = logits.softmax(-1).max(-1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(
        f"{'no more' if is_end and said == END else said} {share:.0%}" for said, share in pairs
    )


def _of(model: nn.Module) -> Dram:
    """The model, checked to be of the right class."""
    assert isinstance(model, Dram), f"no DRAM but {type(model).__name__}"
    return model


PAIRS = DramSettings()
RECIPES = (
    DramRecipe(
        name="dram-pairs",
        settings=PAIRS,
        about="Locates two digits among pieces of others and classifies both, from left to right.",
        published=5.0,
        target=8.0,
        source=f"{PAPER}, table 1",
        minutes=40.0,
    ),
    DramRecipe(
        name="dram-addition",
        settings=replace(PAIRS, asks="sum", n_glimpses=6, training=BY_MUON),
        about="Locates two digits among pieces of others and predicts their sum.",
        published=2.5,
        source=f"{PAPER}, table 2",
        minutes=52.0,
    ),
)
