"""Training, judging and watching DRAW on binarised digits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.trace.trace import ImageTrace, window_outlines
from saccade.zoo.models.draw import Draw
from saccade.zoo.objectives.variational import bernoulli_elbo
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.seeing import held_out, one_image
from saccade.zoo.sensors.gaussian_bank import GaussianGrid, GridPlace, gaussian_read, grid_windows
from saccade.zoo.tasks.curricula import generator_of
from saccade.zoo.tasks.mnist import BinarisedDigits, binarise, read_mnist
from saccade.zoo.tasks.scenes import TEST_SEED, VALID_SEED, Scene
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.draw_mnist import DrawSettings

MOSAIC = 4  # samples are shown as so many rows of so many
AT_ONCE = 500  # images, where nothing is learnt


def draw_job(settings: DrawSettings, data: Path | None) -> Job:
    """Digits drawn again, each time with other pixels of ink."""
    train, valid = read_mnist("train", data), read_mnist("valid", data)
    held_out = binarise(valid.images, generator_of(VALID_SEED, 0))
    seed = settings.training.seed

    def batches(epoch: int) -> BinarisedDigits:
        return BinarisedDigits(train, batch=settings.batch, seed=seed, epoch=epoch)

    def loss(model: nn.Module, images: Tensor) -> LossOut:
        drawn = cast("Draw", model)(images)
        bound = bernoulli_elbo(drawn.canvases[-1], images, kl=drawn.kl)
        logged = {"reconstruction": bound.reconstruction.detach(), "latent": bound.latent.detach()}
        return LossOut(bound.loss, n=len(images), logged=logged)

    return Job(
        model=draw_model(settings),
        batches=batches,
        loss=loss,
        validate=lambda model: bound_of(cast("Draw", model), held_out),
        score="nats",
        is_better="less",
        config=settings.training,
    )


def draw_model(settings: DrawSettings) -> Draw:
    """The untrained model."""
    return Draw(
        d_hidden=settings.d_hidden,
        d_latent=settings.d_latent,
        n_steps=settings.n_steps,
        read_size=settings.read_size,
        write_size=settings.write_size,
        has_attention=settings.has_attention,
    )


def bound_of(model: Draw, images: Float[Tensor, "image height width"]) -> dict[str, float]:
    """The bound on ``-log p(x)`` in nats an image, and its two parts; one sample of the latents."""
    sums = torch.zeros(3)
    for some in images.split(AT_ONCE):
        drawn = model(some)
        sums += len(some) * torch.stack(bernoulli_elbo(drawn.canvases[-1], some, kl=drawn.kl))
    nats, reconstruction, latent = (sums / len(images)).tolist()
    return {"nats": nats, "reconstruction": reconstruction, "latent": latent}


def evaluate_draw(run: OpenRun, data: Path | None) -> dict[str, float]:
    """The bound on the test digits."""
    test = read_mnist("test", data)
    return bound_of(_model(run), binarise(test.images, generator_of(TEST_SEED, 0)))


def trace_draw(run: OpenRun, text: str) -> list[ImageTrace]:
    """A test digit drawn again, or new digits that nobody wrote."""
    words = text.split()
    with torch.no_grad():
        if words[0] == "sample" and len(words) <= 2 and all(map(str.isdigit, words[1:])):
            return [_sample_trace(_model(run), seed=int(words[1]) if len(words) == 2 else 0)]
        grey = one_image(text, held_out("test", Scene(), None))
        image = torch.bernoulli(grey, generator=generator_of(TEST_SEED, 0))
        return [_digit_trace(_model(run), image, title=f"{run.recipe.name}, image {text.strip()}")]


def _digit_trace(model: Draw, image: Float[Tensor, "1 height width"], *, title: str) -> ImageTrace:
    drawn = model(image)
    pictures = {"canvas": torch.cat(drawn.canvases).sigmoid()}
    if model.read_place is not None:
        pictures = {"sees": _seen(image, drawn.reads, model.read_place), **pictures}
    grids = [(drawn.writes, model.write_place), (drawn.reads, model.read_place)]
    windows = [_windows(looks, place) for looks, place in grids if place is not None]
    return ImageTrace(
        kind="canvas",
        image=image[0],
        # What the strokes so far have told of the image.
        steps=tuple(f"{nats:.0f} nats" for nats in drawn.kl[0].cumsum(0).tolist()),
        outlines=torch.stack(windows, dim=1) if windows else torch.zeros(model.n_steps, 0, 4, 2),
        pictures=pictures,
        title=title,
    )


def _sample_trace(model: Draw, *, seed: int) -> ImageTrace:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn = model.sample(MOSAIC**2)
    canvases = torch.stack([_mosaic(canvas.sigmoid()) for canvas in drawn.canvases])
    return ImageTrace(
        kind="canvas",
        image=canvases[-1],
        steps=tuple(str(step + 1) for step in range(len(canvases))),
        outlines=torch.zeros(len(canvases), 0, 4, 2),
        pictures={"canvas": canvases},
        title=f"Digits that nobody wrote, from seed {seed}",
    )


def _mosaic(images: Float[Tensor, "image height width"]) -> Float[Tensor, "tall wide"]:
    rows = images.unflatten(0, (MOSAIC, MOSAIC)).transpose(1, 2)  # [row, height, column, width]
    return rows.flatten(2).flatten(0, 1)


def _seen(
    image: Float[Tensor, "1 height width"], grids: Sequence[GaussianGrid | None], place: GridPlace
) -> Float[Tensor, "step size size"]:
    """The image through the filters of each step, at its own brightness."""
    banks = [
        place.bank(grid._replace(intensity=torch.ones(1))) for grid in grids if grid is not None
    ]
    return torch.cat([gaussian_read(image[:, None], bank)[:, 0] for bank in banks])


def _windows(grids: Sequence[GaussianGrid | None], place: GridPlace) -> Float[Tensor, "step 4 2"]:
    """The outlines of the grids."""
    sizes = {"height": place.height, "width": place.width, "size": place.size}
    windows = torch.cat([grid_windows(grid, **sizes) for grid in grids if grid is not None])
    return window_outlines(windows[:, :2], windows[:, 2:])


def _model(run: OpenRun) -> Draw:
    model = run.model
    assert isinstance(model, Draw), f"no DRAW but {type(model).__name__}"
    return model
