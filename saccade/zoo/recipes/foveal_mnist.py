"""Recipe `foveal-mnist`: digits classified from a few glimpses by a Boltzmann machine.

Larochelle and Hinton, 2010 (https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf). The paper's
retina and fixation points differ, so its number is not comparable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.trace.trace import ImageTrace
from saccade.zoo.models.foveal_rbm import FovealRbm, foveal_loss
from saccade.zoo.recipes.mnist_scenes import error_of, gaze, held_out, one_image
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.sensors.retina import Retina
from saccade.zoo.tasks.mnist import SIDE, ImageBatch, Scene, Scenes, read_mnist
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

N_CLASSES = 10
# The learning rate falls to zero, so the steps end a run; the minutes are a limit for slow
# machines.
TRAINING = TrainConfig(
    steps=15_000,
    minutes=20.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=200,
    clip=0.0,
    validate_steps=1000,
)


@dataclass(frozen=True, kw_only=True)
class FovealSettings:
    """The glimpses, and the machine that integrates them."""

    max_shift: FewOrNone = 1
    """Data augmentation: maximum shift of a digit in pixels."""
    patch: Side = 8
    """Side length of a glimpse in pixels."""
    n_scales: Few = 2
    """Number of scales of a glimpse, each twice as wide as the one before."""
    side: Side = 7
    """Side of the square grid of fixation points."""
    n_glimpses: Few = 6
    """Glimpses of an image before it is classified."""
    d_factor: Width = 256
    """Factors of the third-order weights."""
    d_hidden: Width = 512
    """Hidden units."""
    explore: Share = 0.5
    """Exploration: fraction of training glimpses at random locations instead of the
    controller's."""
    generative_weight: NonNegative = 0.01
    """Weight of the generative loss, relative to the classification loss."""
    is_sequential: bool = True
    """Loss after every glimpse, not only after the last."""
    batch: Batch = 128
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class FovealRecipe(Recipe):
    """A Boltzmann machine that integrates glimpses, and a controller that places them."""

    reads_files = True

    system: str = "foveal_rbm"
    task: str = "scenes"
    metric: str = "error"
    is_better: Literal["less", "more"] = "less"
    other_metrics: Mapping[str, float | None] = field(
        default_factory=lambda: {"error_random": None}
    )
    source: str = "https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf"
    gallery: tuple[str, ...] = ("0", "1")

    def build(self, settings: FovealSettings, data: Path | None) -> Job:
        """Paths are the controller's, with exploration of other locations."""
        train, seed = read_mnist("train", data), settings.training.seed
        scene, valid = Scene(max_shift=settings.max_shift), held_out("valid", Scene(), data)

        def loss(model: nn.Module, batch: ImageBatch) -> LossOut:
            machine = _machine(model)
            found = foveal_loss(
                machine,
                machine.look(batch.images, explore=settings.explore),
                batch.labels,
                generative_weight=settings.generative_weight,
                is_sequential=settings.is_sequential,
            )
            logged = {"nats": found.nats, "control": found.control}
            return LossOut(found.loss, n=len(batch.labels), logged=logged)

        return Job(
            model=self.restore(settings, {}),
            batches=lambda epoch: Scenes(
                train, scene, batch=settings.batch, seed=seed, epoch=epoch
            ),
            loss=loss,
            validate=lambda model: {"error": error_of(model, valid)},
            score="error",
            is_better="less",
            config=settings.training,
        )

    def restore(self, settings: FovealSettings, kept: Mapping[str, Any]) -> FovealRbm:
        """The untrained model."""
        del kept
        return FovealRbm(
            size=(SIDE, SIDE),
            n_classes=N_CLASSES,
            retina=Retina(size=settings.patch, n_scales=settings.n_scales),
            side=settings.side,
            n_glimpses=settings.n_glimpses,
            d_factor=settings.d_factor,
            d_hidden=settings.d_hidden,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """``error``: glimpses by the controller. ``error_random``: at random locations."""
        test, model = held_out("test", Scene(), data), _machine(run.model)
        return {
            "error": error_of(model, test),
            "error_random": error_of(lambda images: _anywhere(model, images), test, model=model),
        }

    @torch.no_grad()
    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[ImageTrace]:
        """The location and the patch of each glimpse, and the prediction after it."""
        model = _machine(run.model)
        image = one_image(text, held_out("test", Scene(), data))
        looked = model.look(to_device_of(model, image))
        said = model.logits(model.drives(looked)[0, 1:]).softmax(-1).max(-1)
        pairs = zip(said.indices.tolist(), said.values.tolist(), strict=True)
        return [
            gaze(
                model.retina,
                image[0],
                model.places[looked.places[0]],
                steps=tuple(f"{digit} {share:.0%}" for digit, share in pairs),
                title=f"{run.recipe.name}, image {text.strip()}",
            )
        ]


def _anywhere(
    model: FovealRbm, images: Float[Tensor, "batch height width"]
) -> Float[Tensor, "batch d_class"]:
    """The answer after glimpses at random locations."""
    return model.logits(model.drives(model.look(images, explore=1.0))[:, -1])


def _machine(model: nn.Module) -> FovealRbm:
    """The model, checked to be of the right class."""
    assert isinstance(model, FovealRbm), f"no foveal RBM but {type(model).__name__}"
    return model


RECIPES = (
    FovealRecipe(
        name="foveal-mnist",
        about="Classifies a digit from 6 glimpses, integrated by a third-order Boltzmann machine.",
        note="The paper's retina and fixation points differ, so its number is not comparable. "
        "Digits are shifted by a pixel in training.",
        minutes=20.0,
        settings=FovealSettings(),
    ),
)
