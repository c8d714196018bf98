"""Recipes on cluttered MNIST with differentiable attention: `diffram-*`, `edram-*`, `stn-*`.

A digit is located among pieces of others and classified. Where to look is learnt without sampling:
through DRAW's grid of Gaussian filters (Gregor et al., 2015, https://arxiv.org/abs/1502.04623,
table 1), a spatial transformer in a loop (EDRAM, Ablavatski et al., 2017,
https://arxiv.org/abs/1706.03581, table 1), or a spatial transformer network (Jaderberg et al.,
2015, https://arxiv.org/abs/1506.02025, section 4.1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.trace.trace import ImageTrace, affine_outlines, window_outlines
from saccade.zoo.models.diff_ram import DifferentiableRam
from saccade.zoo.models.edram import Edram, edram_loss
from saccade.zoo.models.spatial_transformer_net import SpatialTransformerNet
from saccade.zoo.objectives.reinforce import answers_loss
from saccade.zoo.recipes.mnist_scenes import error_of, held_out, one_image
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.sensors.gaussian_bank import grid_windows
from saccade.zoo.sensors.spatial_transformer import window_theta
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
    Widths,
)

N_CLASSES = 10
DIFF_RAM_TRAINING = TrainConfig(
    epochs=52,
    minutes=58.0,
    learning_rate=0.001,
    clip=1.0,
    schedule="cosine",
    warmup=300,
    precision="bfloat16",
)
EDRAM_TRAINING = TrainConfig(
    epochs=12, minutes=58.0, learning_rate=0.002, clip=1.0, schedule="cosine", warmup=300
)
STN_TRAINING = TrainConfig(
    epochs=40, minutes=50.0, learning_rate=0.001, clip=5.0, schedule="cosine", warmup=200
)
Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class DiffRamSettings:
    """Number and size of the glimpses."""

    size: Side = 100
    """Side length of a scene in pixels."""
    n_clutter: FewOrNone = 8
    """Pieces of other digits in it."""
    n_glimpses: Few = 8
    """Glimpses before the answer."""
    patch: Side = 12
    """Filters on a side of the attention grid."""
    d_hidden: Width = 256
    """Hidden size."""
    first_view: Share = 0.5
    """Initial width of the attention grid, relative to the scene. A digit has a quarter: seen at
    full width, a patch this small shows little of its shape, and learning starts later."""
    restraint: NonNegative = 4.0
    """Clip each scene's gradient through the grid to this multiple of the median norm; 0: no
    clipping."""
    early_weight: NonNegative = 7.0
    """Weight of the mean loss of the earlier answers, relative to the last one: with seven of them,
    7 weighs each equally; the paper's: 0."""
    batch: Batch = 128
    """Scenes in a batch."""
    training: TrainConfig = DIFF_RAM_TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class EdramSettings:
    """Number and size of the glimpses, and the supervision."""

    size: Side = 100
    """Side length of a scene in pixels."""
    n_clutter: FewOrNone = 8
    """Pieces of other digits in it."""
    n_glimpses: Few = 6
    """Glimpses before the answer."""
    side: Side = 26
    """Side length of a glimpse in pixels."""
    channels: Widths = (24, 48)
    """Of the convolutions over a glimpse."""
    d_hidden: Width = 192
    """Hidden size of each of the two LSTMs."""
    place_weight: NonNegative = 10.0
    """Weight of the location loss: at 10, five pixels off cost 0.1 nats."""
    sampler_gradient: Share = 0.05
    """Fraction of the classification gradient that goes through the sampler to the windows; the
    paper's: 1."""
    batch: Batch = 128
    """Scenes in a batch."""
    training: TrainConfig = EDRAM_TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class StnSettings:
    """The window and the classifier."""

    size: Side = 60
    """Side length of a scene in pixels."""
    n_clutter: FewOrNone = 4
    """Pieces of other digits in it."""
    side: Side = 28
    """Side length of the window in pixels."""
    channels: Widths = (32, 64)
    """Of the convolutions over the window."""
    d_hidden: Width = 128
    """Units between them and the answer."""
    is_multi: bool = False
    """A transformer before every convolution, not only before the first."""
    slower: Share = 0.3
    """Factor on the learning rate of localisation networks."""
    batch: Batch = 128
    """Scenes in a batch."""
    training: TrainConfig = STN_TRAINING
    """Training settings."""


Settings = DiffRamSettings | EdramSettings | StnSettings


@dataclass(frozen=True, kw_only=True)
class ClutteredRecipe(Recipe):
    """A digit among clutter; a subclass has the model, its loss, and the trace of one image."""

    reads_files = True

    task: str = "scenes"
    metric: str = "error"
    is_better: Literal["less", "more"] = "less"
    gallery: tuple[str, ...] = ("0", "1")

    @abstractmethod
    def loss(self, model: nn.Module, batch: ImageBatch, settings: Any) -> LossOut:
        """The loss of a batch."""

    @abstractmethod
    def trace_image(
        self, model: nn.Module, image: Float[Tensor, "1 height width"], *, title: str
    ) -> ImageTrace:
        """Where a model looks in one image, and its prediction after each glimpse."""

    def rates(self, settings: Any) -> dict[str, float]:
        """Factors on the learning rate of some weights; none by default."""
        del settings
        return {}

    def build(self, settings: Settings, data: Path | None) -> Job:
        """New scenes in every epoch."""
        model = self.restore(settings, {})
        train, seed, scene = read_mnist("train", data), settings.training.seed, _scene(settings)
        valid = held_out("valid", scene, data)
        return Job(
            model=model,
            batches=lambda epoch: Scenes(
                train, scene, batch=settings.batch, seed=seed, epoch=epoch
            ),
            loss=lambda model, batch: self.loss(model, batch, settings),
            validate=lambda model: {"error": error_of(model, valid)},
            score="error",
            is_better="less",
            config=settings.training,
            rates=self.rates(settings),
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """The error on scenes with the test digits."""
        return {"error": error_of(run.model, held_out("test", _scene(run.settings), data))}

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[ImageTrace]:
        """Where it looks in an image, and its prediction after each glimpse."""
        image = one_image(text, held_out("test", _scene(run.settings), data))
        title = f"{run.recipe.name}, image {text.strip()}"
        with torch.no_grad():
            return [self.trace_image(run.model, to_device_of(run.model, image), title=title)]


@dataclass(frozen=True, kw_only=True)
class DiffRamRecipe(ClutteredRecipe):
    """Differentiable RAM: DRAW's reader."""

    system: str = "diff_ram"

    def restore(self, settings: DiffRamSettings, kept: Mapping[str, Any]) -> DifferentiableRam:
        """The untrained model."""
        del kept
        return DifferentiableRam(
            size=(settings.size, settings.size),
            n_classes=N_CLASSES,
            n_glimpses=settings.n_glimpses,
            patch=settings.patch,
            d_hidden=settings.d_hidden,
            first_view=settings.first_view,
            restraint=settings.restraint,
        )

    def loss(self, model: nn.Module, batch: ImageBatch, settings: DiffRamSettings) -> LossOut:
        """Cross-entropy, also of the earlier answers."""
        looked = _of(model, DifferentiableRam).look(batch.images)
        answers = looked.logits[None]  # one sample: nothing is drawn
        taught = answers_loss(answers, batch.labels, early_weight=settings.early_weight)
        logged = {"wrong": _wrong(looked.logits, batch)}
        return LossOut(taught.loss, n=len(batch.labels), logged=logged)

    def trace_image(
        self, model: nn.Module, image: Float[Tensor, "1 height width"], *, title: str
    ) -> ImageTrace:
        """The grid of filters at each glimpse."""
        reader = _of(model, DifferentiableRam)
        found, place = reader.look(image), reader.place
        sizes = {"height": place.height, "width": place.width, "size": place.size}
        windows = torch.cat([grid_windows(grid, **sizes) for grid in found.grids])
        intensity = torch.cat([grid.intensity for grid in found.grids])
        return ImageTrace(
            kind="gaze",
            image=image[0].cpu(),
            steps=_answers(found.logits[0]),
            outlines=window_outlines(windows[:, :2], windows[:, 2:])[:, None].cpu(),
            pictures={"glimpse": (torch.cat(found.patches) / intensity[:, None, None]).cpu()},
            title=title,
        )


@dataclass(frozen=True, kw_only=True)
class EdramRecipe(ClutteredRecipe):
    """EDRAM: a spatial transformer in a loop."""

    system: str = "edram"

    def restore(self, settings: EdramSettings, kept: Mapping[str, Any]) -> Edram:
        """The untrained model."""
        del kept
        return Edram(
            size=(settings.size, settings.size),
            n_classes=N_CLASSES,
            n_glimpses=settings.n_glimpses,
            side=settings.side,
            channels=settings.channels,
            d_hidden=settings.d_hidden,
            sampler_gradient=settings.sampler_gradient,
        )

    def loss(self, model: nn.Module, batch: ImageBatch, settings: EdramSettings) -> LossOut:
        """Each glimpse is supervised: its class and its location."""
        looked = _of(model, Edram).look(batch.images)
        found = edram_loss(
            looked,
            batch.labels,
            theta=window_theta(batch.windows[:, 0]),
            place_weight=settings.place_weight,
        )
        logged = {"placed": found.placed, "wrong": _wrong(looked.logits, batch)}
        return LossOut(found.loss, n=len(batch.labels), logged=logged)

    def trace_image(
        self, model: nn.Module, image: Float[Tensor, "1 height width"], *, title: str
    ) -> ImageTrace:
        """The window of each glimpse."""
        found = _of(model, Edram).look(image)
        return ImageTrace(
            kind="gaze",
            image=image[0].cpu(),
            steps=_answers(found.logits[0]),
            outlines=affine_outlines(found.thetas[0])[:, None].cpu(),
            pictures={"glimpse": torch.cat(found.patches).cpu()},
            title=title,
        )


@dataclass(frozen=True, kw_only=True)
class StnRecipe(ClutteredRecipe):
    """A spatial transformer network."""

    system: str = "spatial_transformer_net"
    gallery: tuple[str, ...] = ("0", "1", "2")

    def restore(self, settings: StnSettings, kept: Mapping[str, Any]) -> SpatialTransformerNet:
        """The untrained model."""
        del kept
        return SpatialTransformerNet(
            size=(settings.size, settings.size),
            n_classes=N_CLASSES,
            side=settings.side,
            channels=settings.channels,
            d_hidden=settings.d_hidden,
            is_multi=settings.is_multi,
        )

    def loss(self, model: nn.Module, batch: ImageBatch, settings: StnSettings) -> LossOut:
        """Cross-entropy of the one answer."""
        del settings
        logits = model(batch.images)
        answer = functional.cross_entropy(logits, batch.labels)
        logged = {"wrong": _wrong(logits[:, None], batch)}
        return LossOut(answer, n=len(batch.labels), logged=logged)

    def rates(self, settings: StnSettings) -> dict[str, float]:
        """Localisation is learnt more slowly than classification."""
        return {"localisation.": settings.slower, "inner.": settings.slower}

    def trace_image(
        self, model: nn.Module, image: Float[Tensor, "1 height width"], *, title: str
    ) -> ImageTrace:
        """The window of the first transformer."""
        found = _of(model, SpatialTransformerNet).look(image)
        return ImageTrace(
            kind="warp",
            image=image[0].cpu(),
            steps=_answers(found.logits),
            outlines=affine_outlines(found.theta)[:, None].cpu(),
            pictures={"window": found.window.cpu()},
            title=title,
        )


def _scene(settings: Settings) -> Scene:
    return Scene(size=settings.size, n_clutter=settings.n_clutter)


def _answers(logits: Float[Tensor, "step d_class"]) -> tuple[str, ...]:
    best = logits.softmax(-1).max(-1)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(f"{label} {sure:.0%}" for label, sure in pairs)


def _wrong(logits: Float[Tensor, "batch glimpse d_class"], batch: ImageBatch) -> Float[Tensor, ""]:
    """Error of the last answer in per cent."""
    return 100 * (logits[:, -1].argmax(-1) != batch.labels).float().mean()


def _of(model: nn.Module, kind: type[Model]) -> Model:
    assert isinstance(model, kind), f"no {kind.__name__} but {type(model).__name__}"
    return model


SINGLE = StnRecipe(
    name="stn-cluttered60",
    about="A network locates a digit among clutter, crops a window there and classifies it.",
    target=3.0,
    source="https://arxiv.org/abs/1506.02025, section 4.1",
    note="The paper has 1.7 on other clutter: 16 pieces of 6 x 6.",
    minutes=15.0,
    settings=StnSettings(),
)
RECIPES = (
    DiffRamRecipe(
        name="diffram-cluttered100",
        about="DRAW's reader locates a digit among clutter in 8 glimpses, and classifies it.",
        target=5.0,
        published=3.36,
        source="https://arxiv.org/abs/1502.04623, table 1",
        note="Scenes are generated anew for every epoch, earlier answers are trained, too, and "
        "glimpses start with half of the scene; the paper does not mention these.",
        minutes=28.0,
        settings=DiffRamSettings(),
    ),
    EdramRecipe(
        name="edram-cluttered100",
        about="A spatial transformer in a loop: 6 glimpses, supervised with the digit's location.",
        target=2.0,
        published=0.6,
        source="https://arxiv.org/abs/1706.03581, table 1",
        note="Fewer channels and smaller states than the paper's 11 million weights, and little "
        "gradient through the sampler.",
        minutes=20.0,
        settings=EdramSettings(),
    ),
    SINGLE,
    replace(
        SINGLE,
        name="stn-multi-cluttered60",
        about="The same with another transformer before the second convolution.",
        target=None,
        settings=StnSettings(is_multi=True),
    ),
)
