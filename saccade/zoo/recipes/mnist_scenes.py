"""Shared by recipes on MNIST scenes: the test scenes, their error, and traces of one image."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import MissingPackageError, UsageError
from saccade.trace.trace import ImageTrace, window_outlines
from saccade.zoo.recipes.recipe import InputFile
from saccade.zoo.sensors.retina import Retina
from saccade.zoo.tasks.mnist import (
    TEST_SEED,
    VALID_SEED,
    ImageBatch,
    Scene,
    Scenes,
    as_images,
    read_mnist,
)
from saccade.zoo.training.job import to_device_of

TOGETHER = 500  # images in a batch, in evaluation


def held_out(part: Literal["valid", "test"], scene: Scene, data: Path | None) -> Scenes:
    """Scenes of all held-out digits, always the same, without random shifts."""
    seed = VALID_SEED if part == "valid" else TEST_SEED
    return Scenes(read_mnist(part, data), scene, batch=TOGETHER, seed=seed, in_order=True)


def error_of(
    answer: Callable[[Float[Tensor, "batch height width"]], Float[Tensor, "batch d_class"]],
    batches: Iterable[ImageBatch],
    *,
    model: nn.Module | None = None,
) -> float:
    """Classification error in per cent.

    Args:
        answer: a model, or a function that calls one.
        model: the model, if ``answer`` is a function: images go to its device.
    """
    asked = answer if isinstance(answer, nn.Module) else model
    wrong, n = 0, 0
    for batch in batches:
        images = batch.images if asked is None else to_device_of(asked, batch.images)
        wrong += int((answer(images).argmax(-1).cpu() != batch.labels).sum())
        n += len(batch.labels)
    return 100 * wrong / n


def one_image(text: str, scenes: Scenes) -> Float[Tensor, "1 height width"]:
    """The image of a user's input: the number of a test scene, or a file."""
    if isinstance(text, InputFile):
        return decode_grey(text.data, text, size=scenes.scene.size)
    text, n = text.strip(), len(scenes.digits.labels)
    if text.isdigit():
        if int(text) >= n:
            raise UsageError(
                f"expected the number of a test image, 0 to {n - 1}, got {text}",
                hint="for example 0, which shows a seven",
            )
        batch, row = divmod(int(text), TOGETHER)
        return scenes[batch].images[row : row + 1]
    raise UsageError(
        f"expected the number of a test image or an image file, got {text!r}",
        hint="for example 0, which shows a seven",
    )


def gaze(
    retina: Retina,
    image: Float[Tensor, "height width"],
    centres: Float[Tensor, "glimpse 2"],
    *,
    steps: tuple[str, ...],
    title: str = "",
) -> ImageTrace:
    """The trace of a path of glimpses over one image: every window and its patches."""
    image, centres = image.cpu(), centres.cpu()  # the model may be elsewhere
    patches = retina.look(image[None], centres[None])[0]  # [glimpse, scale, row, column]
    half = retina.half_sizes(height=image.shape[0], width=image.shape[1])  # [scale, 2]
    shape = (len(centres), retina.n_scales, 2)
    return ImageTrace(
        kind="gaze",
        image=image,
        steps=steps,
        outlines=window_outlines(centres[:, None].expand(shape), half.expand(shape)),
        pictures={
            f"scale {number + 1}": patches[:, number].clamp(0, 1)
            for number in range(retina.n_scales)
        },
        title=title,
    )


def decode_grey(data: bytes, name: str, *, size: int) -> Float[Tensor, "1 height width"]:
    """The grey image in a file's bytes, with light ink on a dark background as in MNIST."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingPackageError(
            "reading an image file needs the package 'pillow'", hint="pip install 'saccade[plot]'"
        ) from error
    try:
        with Image.open(io.BytesIO(data)) as opened:
            opened.load()
            image = opened
    except (UnidentifiedImageError, OSError) as error:
        raise UsageError(f"{name} is no image: {error}", hint="give a PNG") from error
    if image.mode not in ("1", "L"):
        raise UsageError(
            f"expected a grey image, {name} has colours ({image.mode})",
            hint="save it in grey: mode L",
        )
    if image.size != (size, size):
        width, height = image.size
        raise UsageError(
            f"expected an image of {size} x {size} pixels, {name} has {width} x {height}",
            hint="the model was trained for that size: crop or pad the image",
        )
    grey = torch.frombuffer(bytearray(image.convert("L").tobytes()), dtype=torch.uint8)
    return as_images(grey.view(1, size, size))
