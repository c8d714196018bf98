"""Recipe `foveal-mnist`: digits named from a few glimpses by a Boltzmann machine.

Larochelle and Hinton, 2010 (https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf). The paper's
retina and its places are others, so its number is not beside ours.
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
# The rate falls to zero, so the steps end a run; the minutes are there for a slow machine.
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
    """What is seen, and what puts it together."""

    wander: FewOrNone = 1
    """While it learns, digits are moved by up to so many pixels."""
    patch: Side = 8
    """Pixels of a glimpse's side."""
    n_scales: Few = 2
    """Patches of a glimpse, each twice as wide as the one before."""
    side: Side = 7
    """It may look at so many times so many places."""
    n_glimpses: Few = 6
    """Looks at an image before it is named."""
    d_factor: Width = 256
    """Factors of the third-order weights."""
    d_hidden: Width = 512
    """Hidden units."""
    explore: Share = 0.5
    """While it learns, this part of the looks goes anywhere, whatever the controller says."""
    generative_weight: NonNegative = 0.01
    """How much modelling the glimpses counts beside naming them."""
    is_sequential: bool = True
    """Taught after every glimpse, not only after the last."""
    batch: Batch = 128
    """Images in a batch."""
    training: TrainConfig = TRAINING
    """How it is trained."""


@dataclass(frozen=True, kw_only=True)
class FovealRecipe(Recipe):
    """A Boltzmann machine that puts glimpses together, and a controller that places them."""

    system: str = "foveal_rbm"
    task: str = "scenes"
    metric: str = "error"
    is_better: Literal["less", "more"] = "less"
    beside: Mapping[str, float | None] = field(default_factory=lambda: {"error_random": None})
    source: str = "https://www.cs.toronto.edu/~hinton/absps/nips_eyebm.pdf"
    gallery: tuple[str, ...] = ("0", "1")

    def build(self, settings: FovealSettings, data: Path | None) -> Job:
        """Paths are the controller's, with detours, so that it learns what other places give."""
        train, seed = read_mnist("train", data), settings.training.seed
        scene, valid = Scene(wander=settings.wander), held_out("valid", Scene(), data)

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
        """``error``: looking where the controller says. ``error_random``: looking anywhere."""
        test, model = held_out("test", Scene(), data), _machine(run.model)
        return {
            "error": error_of(model, test),
            "error_random": error_of(lambda images: _anywhere(model, images), test, model=model),
        }

    @torch.no_grad()
    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[ImageTrace]:
        """Where each glimpse was, what it showed, and what the answer would have been after it."""
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
    """The answer after glimpses at places drawn at random."""
    return model.logits(model.drives(model.look(images, explore=1.0))[:, -1])


def _machine(model: nn.Module) -> FovealRbm:
    """The model itself."""
    assert isinstance(model, FovealRbm), f"no foveal RBM but {type(model).__name__}"
    return model


RECIPES = (
    FovealRecipe(
        name="foveal-mnist",
        about="Names a digit from 6 glimpses, put together by a third-order Boltzmann machine.",
        note="The paper's retina and its places are others, so its number is not beside ours. "
        "Digits are moved by a pixel while it learns.",
        minutes=20.0,
        settings=FovealSettings(),
    ),
)
