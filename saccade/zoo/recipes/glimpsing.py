"""Training, judging and watching RAM, and the nets it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.trace.trace import ImageTrace
from saccade.zoo.models.plain_image_nets import ConvolutionalNet, FullyConnectedNet
from saccade.zoo.models.ram import Ram
from saccade.zoo.objectives.reinforce import (
    answers_loss,
    hybrid_loss,
    of_right_answer,
    stepwise_loss,
)
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.seeing import error_of, gaze, held_out, one_image
from saccade.zoo.sensors.retina import Retina
from saccade.zoo.tasks.mnist import ImageBatch, read_mnist
from saccade.zoo.tasks.scenes import Scene, Scenes
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.image_controls import ControlSettings
    from saccade.zoo.recipes.ram import RamSettings

N_CLASSES = 10
N_PASSES = 10  # for the answer averaged over drawn paths


def ram_job(settings: RamSettings, data: Path | None) -> Job:
    """New scenes at every step; places are drawn ever closer to where the policy points."""
    valid = held_out("valid", scene_of(settings), data)

    def fall(model: nn.Module, step: int) -> None:
        way = min(1.0, step / max(1, settings.training.steps))
        _of(model).set_std(settings.first_std + way * (settings.last_std - settings.first_std))

    return Job(
        model=ram_model(settings),
        batches=_batches(settings, data),
        loss=lambda model, batch: ram_loss(_of(model), batch, settings=settings),
        validate=lambda model: {"error": error_of(model, valid)},
        score="error",
        is_better="less",
        config=settings.training,
        before_step=fall,
        # Adam makes steps of full size out of the noise of the policy's gradient.
        rates={"mean.": settings.policy_rate},
        # Without a choice of places there is nothing to teach the location network.
        has_idle_weights=settings.policy != "learnt",
    )


def ram_loss(model: Ram, batch: ImageBatch, *, settings: RamSettings) -> LossOut:
    """What the answers and the choice of places cost; without a learnt policy the answers alone."""
    looked = model.look(batch.images, n_samples=settings.n_samples, is_drawn=True)
    if settings.policy != "learnt":
        loss = answers_loss(looked.logits, batch.labels, early_weight=settings.early_weight).loss
        return LossOut(loss, n=len(batch.labels))
    right = batch.labels[:, None].expand(-1, looked.expected.shape[2])
    chosen = {
        "log_prob": looked.log_prob,
        "baseline": of_right_answer(looked.expected, right),
        "reinforce_weight": settings.reinforce_weight,
    }
    if settings.early_weight:
        out = stepwise_loss(
            looked.logits,
            batch.labels,
            early_weight=settings.early_weight,
            discount=settings.discount,
            **chosen,
        )
    else:
        out = hybrid_loss(looked.logits[:, :, -1], batch.labels, **chosen)
    logged = {"nats": out.supervised.detach(), "reward": out.reward.mean()}
    return LossOut(out.loss, n=len(batch.labels), logged=logged)


def ram_model(settings: RamSettings) -> Ram:
    """The untrained model."""
    return Ram(
        size=(settings.size, settings.size),
        n_classes=N_CLASSES,
        retina=Retina(size=settings.patch, n_scales=settings.n_scales),
        n_glimpses=settings.n_glimpses,
        d_glimpse=settings.d_glimpse,
        d_hidden=settings.d_hidden,
        policy=settings.policy,
        std=settings.first_std,
        reach=settings.reach,
    )


def control_job(settings: ControlSettings, data: Path | None) -> Job:
    """The same scenes for a net that sees them whole."""
    valid = held_out("valid", scene_of(settings), data)

    def loss(model: nn.Module, batch: ImageBatch) -> LossOut:
        found = functional.cross_entropy(model(batch.images), batch.labels)
        return LossOut(found, n=len(batch.labels))

    return Job(
        model=control_model(settings),
        batches=_batches(settings, data),
        loss=loss,
        validate=lambda model: {"error": error_of(model, valid)},
        score="error",
        is_better="less",
        config=settings.training,
    )


def control_model(settings: ControlSettings) -> FullyConnectedNet | ConvolutionalNet:
    """The untrained net."""
    make = {"fc": FullyConnectedNet, "conv": ConvolutionalNet}[settings.net]
    size = (settings.size, settings.size)
    return make(size=size, n_classes=N_CLASSES, d_hidden=settings.d_hidden)


def evaluate_control(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Per cent of the test digits named wrong."""
    return {"error": error_of(run.model, held_out("test", scene_of(run.settings), data))}


def _batches(settings: RamSettings | ControlSettings, data: Path | None) -> Callable[[int], Scenes]:
    train, seed = read_mnist("train", data), settings.training.seed
    scene = scene_of(settings, wander=settings.wander)
    return lambda epoch: Scenes(train, scene, batch=settings.batch, seed=seed, epoch=epoch)


def scene_of(settings: RamSettings | ControlSettings, *, wander: int = 0) -> Scene:
    """What the images show."""
    return Scene(size=settings.size, n_clutter=settings.n_clutter, wander=wander)


def evaluate_ram(run: OpenRun, data: Path | None) -> dict[str, float]:
    """``error``: one pass, looking at the policy's means. ``error_averaged``: ten drawn passes."""
    test, model = held_out("test", scene_of(run.settings), data), _of(run.model)
    figures = {"error": error_of(model, test)}
    if run.settings.policy != "central":
        figures["error_averaged"] = error_of(lambda images: _averaged(model, images), test)
    return figures


def _averaged(model: Ram, images: Float[Tensor, "batch height width"]) -> Tensor:
    return (
        model.look(images, n_samples=N_PASSES, is_drawn=True).logits[:, :, -1].softmax(-1).mean(0)
    )


def trace_ram(run: OpenRun, text: str) -> list[ImageTrace]:
    """Where each glimpse was, what it showed, and what the answer would have been after it."""
    model = _of(run.model)
    image = one_image(text, held_out("test", scene_of(run.settings), None))
    looked = model.look(image, is_drawn=False)
    said = looked.logits[0, 0].softmax(-1).max(-1)
    pairs = zip(said.indices.tolist(), said.values.tolist(), strict=True)
    return [
        gaze(
            model.retina,
            image[0],
            looked.centres[0, 0],
            steps=tuple(f"{digit} {share:.0%}" for digit, share in pairs),
            title=f"{run.recipe.name}, image {text.strip()}",
        )
    ]


def _of(model: nn.Module) -> Ram:
    """The model itself."""
    assert isinstance(model, Ram), f"no RAM but {type(model).__name__}"
    return model
