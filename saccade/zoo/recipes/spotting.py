"""Training, judging and watching systems with a gradient all the way that find and name a digit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.trace.trace import ImageTrace, affine_outlines, window_outlines
from saccade.zoo.models.diff_ram import DifferentiableRam
from saccade.zoo.models.edram import Edram, edram_loss
from saccade.zoo.models.spatial_transformer_net import SpatialTransformerNet
from saccade.zoo.objectives.reinforce import answers_loss
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.seeing import error_of, held_out, one_image
from saccade.zoo.sensors.gaussian_bank import grid_windows
from saccade.zoo.sensors.spatial_transformer import window_theta
from saccade.zoo.tasks.mnist import ImageBatch, read_mnist
from saccade.zoo.tasks.scenes import Scene, Scenes
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.diff_ram import DiffRamSettings
    from saccade.zoo.recipes.edram import EdramSettings
    from saccade.zoo.recipes.spatial_transformer import StnSettings

    Settings = DiffRamSettings | EdramSettings | StnSettings

N_CLASSES = 10
Model = TypeVar("Model", bound=nn.Module)
Loss = Callable[[nn.Module, ImageBatch], LossOut]


def diff_ram_model(settings: DiffRamSettings) -> DifferentiableRam:
    """The untrained model."""
    return DifferentiableRam(
        size=(settings.size, settings.size),
        n_classes=N_CLASSES,
        n_glimpses=settings.n_glimpses,
        patch=settings.patch,
        d_hidden=settings.d_hidden,
        first_view=settings.first_view,
        restraint=settings.restraint,
    )


def diff_ram_job(settings: DiffRamSettings, data: Path | None) -> Job:
    """Scenes anew in every epoch; the answers before the last are taught, too."""

    def loss(model: nn.Module, batch: ImageBatch) -> LossOut:
        looked = _of(model, DifferentiableRam).look(batch.images)
        answers = looked.logits[None]  # one sample: nothing is drawn
        taught = answers_loss(answers, batch.labels, early_weight=settings.early_weight)
        logged = {"wrong": _wrong(looked.logits, batch)}
        return LossOut(taught.loss, n=len(batch.labels), logged=logged)

    return _job(settings, data, model=diff_ram_model(settings), loss=loss)


def stn_model(settings: StnSettings) -> SpatialTransformerNet:
    """The untrained model."""
    return SpatialTransformerNet(
        size=(settings.size, settings.size),
        n_classes=N_CLASSES,
        side=settings.side,
        channels=settings.channels,
        d_hidden=settings.d_hidden,
        is_multi=settings.is_multi,
    )


def stn_job(settings: StnSettings, data: Path | None) -> Job:
    """Scenes anew in every epoch; where to look is learnt more slowly than what is there."""

    def loss(model: nn.Module, batch: ImageBatch) -> LossOut:
        logits = model(batch.images)
        answer = functional.cross_entropy(logits, batch.labels)
        logged = {"wrong": _wrong(logits[:, None], batch)}
        return LossOut(answer, n=len(batch.labels), logged=logged)

    rates = {"localisation.": settings.slower, "inner.": settings.slower}
    return _job(settings, data, model=stn_model(settings), loss=loss, rates=rates)


def edram_model(settings: EdramSettings) -> Edram:
    """The untrained model."""
    return Edram(
        size=(settings.size, settings.size),
        n_classes=N_CLASSES,
        n_glimpses=settings.n_glimpses,
        side=settings.side,
        channels=settings.channels,
        d_hidden=settings.d_hidden,
        sampler_gradient=settings.sampler_gradient,
    )


def edram_job(settings: EdramSettings, data: Path | None) -> Job:
    """Scenes anew in every epoch; each glimpse is told what to say and where to look."""

    def loss(model: nn.Module, batch: ImageBatch) -> LossOut:
        looked = _of(model, Edram).look(batch.images)
        found = edram_loss(
            looked,
            batch.labels,
            theta=window_theta(batch.windows[:, 0]),
            place_weight=settings.place_weight,
        )
        logged = {"placed": found.placed, "wrong": _wrong(looked.logits, batch)}
        return LossOut(found.loss, n=len(batch.labels), logged=logged)

    return _job(settings, data, model=edram_model(settings), loss=loss)


def evaluate_spotting(run: OpenRun, data: Path | None) -> dict[str, float]:
    """The error on scenes with the test digits."""
    return {"error": error_of(run.model, held_out("test", _scene(run.settings), data))}


def trace_spotting(run: OpenRun, text: str) -> list[ImageTrace]:
    """Where it looks in an image, and what it would answer after each look."""
    image = one_image(text, held_out("test", _scene(run.settings), None))
    title = f"{run.recipe.name}, image {text.strip()}"
    with torch.no_grad():
        if isinstance(run.model, SpatialTransformerNet):
            return [_warp_trace(run.model, image, title=title)]
        if isinstance(run.model, DifferentiableRam):
            return [_grid_trace(run.model, image, title=title)]
        return [_glimpse_trace(_of(run.model, Edram), image, title=title)]


def _warp_trace(
    model: SpatialTransformerNet, image: Float[Tensor, "1 height width"], *, title: str
) -> ImageTrace:
    found = model.look(image)
    return ImageTrace(
        kind="warp",
        image=image[0],
        steps=_answers(found.logits),
        outlines=affine_outlines(found.theta)[:, None],
        pictures={"window": found.window},
        title=title,
    )


def _grid_trace(
    model: DifferentiableRam, image: Float[Tensor, "1 height width"], *, title: str
) -> ImageTrace:
    found, place = model.look(image), model.place
    sizes = {"height": place.height, "width": place.width, "size": place.size}
    windows = torch.cat([grid_windows(grid, **sizes) for grid in found.grids])
    seen = torch.cat(found.patches) / torch.cat([g.intensity for g in found.grids])[:, None, None]
    return ImageTrace(
        kind="gaze",
        image=image[0],
        steps=_answers(found.logits[0]),
        outlines=window_outlines(windows[:, :2], windows[:, 2:])[:, None],
        pictures={"glimpse": seen},
        title=title,
    )


def _glimpse_trace(
    model: Edram, image: Float[Tensor, "1 height width"], *, title: str
) -> ImageTrace:
    found = model.look(image)
    return ImageTrace(
        kind="gaze",
        image=image[0],
        steps=_answers(found.logits[0]),
        outlines=affine_outlines(found.thetas[0])[:, None],
        pictures={"glimpse": torch.cat(found.patches)},
        title=title,
    )


def _answers(logits: Float[Tensor, "step d_class"]) -> tuple[str, ...]:
    best = logits.softmax(-1).max(-1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(f"{label} {sure:.0%}" for label, sure in pairs)


def _job(
    settings: Settings,
    data: Path | None,
    *,
    model: nn.Module,
    loss: Loss,
    rates: Mapping[str, float] | None = None,
) -> Job:
    train, seed, scene = read_mnist("train", data), settings.training.seed, _scene(settings)
    valid = held_out("valid", scene, data)
    return Job(
        model=model,
        batches=lambda epoch: Scenes(train, scene, batch=settings.batch, seed=seed, epoch=epoch),
        loss=loss,
        validate=lambda model: {"error": error_of(model, valid)},
        score="error",
        is_better="less",
        config=settings.training,
        rates=rates or {},
    )


def _scene(settings: Settings) -> Scene:
    return Scene(size=settings.size, n_clutter=settings.n_clutter)


def _wrong(logits: Float[Tensor, "batch glimpse d_class"], batch: ImageBatch) -> Float[Tensor, ""]:
    """Per cent of the batch that the last answer has wrong."""
    return 100 * (logits[:, -1].argmax(-1) != batch.labels).float().mean()


def _of(model: nn.Module, kind: type[Model]) -> Model:
    assert isinstance(model, kind), f"no {kind.__name__} but {type(model).__name__}"
    return model
