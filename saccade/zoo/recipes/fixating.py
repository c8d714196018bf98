"""Training, judging and watching the Boltzmann machine that puts glimpses together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.trace.trace import ImageTrace
from saccade.zoo.models.foveal_rbm import FovealRbm, foveal_loss
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.seeing import error_of, gaze, held_out, one_image
from saccade.zoo.sensors.retina import Retina
from saccade.zoo.tasks.mnist import ImageBatch, read_mnist
from saccade.zoo.tasks.scenes import SIDE, Scene, Scenes
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.foveal_mnist import FovealSettings

N_CLASSES = 10


def foveal_job(settings: FovealSettings, data: Path | None) -> Job:
    """Paths are the controller's, with detours, so that it learns what other places are worth."""
    train, seed = read_mnist("train", data), settings.training.seed
    scene, valid = Scene(wander=settings.wander), held_out("valid", Scene(), data)

    def loss(model: nn.Module, batch: ImageBatch) -> LossOut:
        machine = _of(model)
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
        model=foveal_model(settings),
        batches=lambda epoch: Scenes(train, scene, batch=settings.batch, seed=seed, epoch=epoch),
        loss=loss,
        validate=lambda model: {"error": error_of(model, valid)},
        score="error",
        is_better="less",
        config=settings.training,
    )


def foveal_model(settings: FovealSettings) -> FovealRbm:
    """The untrained model."""
    return FovealRbm(
        size=(SIDE, SIDE),
        n_classes=N_CLASSES,
        retina=Retina(size=settings.patch, n_scales=settings.n_scales),
        side=settings.side,
        n_glimpses=settings.n_glimpses,
        d_factor=settings.d_factor,
        d_hidden=settings.d_hidden,
    )


def evaluate_foveal(run: OpenRun, data: Path | None) -> dict[str, float]:
    """``error``: looking where the controller says. ``error_random``: the same, but anywhere."""
    test, model = held_out("test", Scene(), data), _of(run.model)
    return {
        "error": error_of(model, test),
        "error_random": error_of(lambda images: _anywhere(model, images), test),
    }


def _anywhere(model: FovealRbm, images: Float[Tensor, "batch height width"]) -> Tensor:
    return model.logits(model.drives(model.look(images, explore=1.0))[:, -1])


@torch.no_grad()
def trace_foveal(run: OpenRun, text: str) -> list[ImageTrace]:
    """Where each glimpse was, what it showed, and what the answer would have been after it."""
    model = _of(run.model)
    image = one_image(text, held_out("test", Scene(), None))
    looked = model.look(image)
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


def _of(model: nn.Module) -> FovealRbm:
    """The model itself."""
    assert isinstance(model, FovealRbm), f"no foveal RBM but {type(model).__name__}"
    return model
