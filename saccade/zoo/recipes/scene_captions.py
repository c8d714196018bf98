"""Recipes `caption-scenes-*`: captions of scenes of digits, where attention can be evaluated.

Xu et al., 2015, Show, Attend and Tell (https://arxiv.org/abs/1502.03044), with soft and with hard
attention; and, without any, Vinyals et al., 2015, Show and Tell (https://arxiv.org/abs/1411.4555).
The papers describe photographs and can only show plots of attention. Here the position of each
digit is known: see `saccade.zoo.tasks.digit_captions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import ImageTrace
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.metrics.sequence_metrics import HALF, weight_in_windows
from saccade.zoo.models.image_encoders import ConvolutionalEncoder
from saccade.zoo.models.sequence_reader import influence
from saccade.zoo.models.show_and_tell import ShowAndTell
from saccade.zoo.models.show_attend_tell import ShowAttendTell
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.mnist_scenes import TOGETHER
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.digit_captions import (
    HEIGHT,
    MOST,
    N_WORDS,
    NAME,
    VOCABULARY,
    CaptionScenes,
    SceneBatch,
    Sentences,
)
from saccade.zoo.tasks.mnist import TEST_SEED, VALID_SEED, read_mnist
from saccade.zoo.tasks.vocabulary import EOS, PAD, Ragged, Vocabulary
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Batch, NonNegative, Side, TrainConfig, Width, Widths

LONGEST = MOST * N_WORDS  # words of a sentence, EOS included
Captioner = ShowAttendTell | ShowAndTell
TRAINING = TrainConfig(
    epochs=8,
    minutes=58.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=200,
    clip=5.0,
)


@dataclass(frozen=True, kw_only=True)
class CaptionScenesSettings:
    """The scenes and the model."""

    size: Side = 88
    """Side length of a scene in pixels; a digit has 28."""
    looking: Literal["soft", "hard", "none"] = "soft"
    """Attention: soft (weights over all cells), hard (one sampled cell), or none."""
    channels: Widths = (24, 32, 64, 64, 96)
    """Of the five convolutions."""
    d_embed: Width = 64
    """Embedding dimension."""
    d_hidden: Width = 128
    """Units of the LSTM."""
    cover_weight: NonNegative = 0.0
    """Weight of the penalty that makes attention cover every cell; a scene is mostly empty."""
    entropy_weight: NonNegative = 0.01
    """Hard attention: weight of the entropy bonus, relative to the likelihood."""
    reward_weight: NonNegative = 1.0
    """Hard attention: weight of the policy gradient."""
    batch: Batch = 64
    """Scenes in a batch."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class SceneCaptionRecipe(Recipe):
    """Captions that name each digit and its position."""

    system: str = "show_attend_tell"
    task: str = "caption_scenes"
    metric: str = "exact"
    gallery: tuple[str, ...] = ("0", "7")

    def build(self, settings: CaptionScenesSettings, data: Path | None) -> Job:
        """New scenes at every step."""
        train, seed = read_mnist("train", data), settings.training.seed
        valid = _held_out("valid", settings, data)

        def batches(epoch: int) -> CaptionScenes:
            return CaptionScenes(
                train, size=settings.size, batch=settings.batch, seed=seed, epoch=epoch
            )

        return Job(
            model=self.restore(settings, {}),
            batches=batches,
            loss=lambda model, batch: _loss(as_captioner(model), batch, settings=settings),
            validate=lambda model: caption_metrics(as_captioner(model), valid),
            score="exact",
            is_better="more",
            config=settings.training,
        )

    def restore(self, settings: CaptionScenesSettings, kept: Mapping[str, Any]) -> Captioner:
        """The untrained model."""
        del kept
        encoder = ConvolutionalEncoder(n_colours=1, channels=settings.channels)
        sizes = {"d_annotation": encoder.d_annotation, "n_words": len(VOCABULARY)}
        sizes |= {"d_embed": settings.d_embed, "d_hidden": settings.d_hidden}
        if settings.looking == "none":
            return ShowAndTell(encoder, **sizes)
        return ShowAttendTell(encoder, looking=settings.looking, **sizes)

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """The metrics on scenes of the test digits."""
        return caption_metrics(as_captioner(run.model), _held_out("test", run.settings, data))

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[ImageTrace]:
        """Where attention goes for each word of the caption, in a test scene."""
        scenes = _held_out("test", run.settings, data)
        n = len(scenes.digits.labels)
        if not text.strip().isdigit() or int(text) >= n:
            raise UsageError(
                f"expected the number of a test scene, 0 to {n - 1}, got {text!r}",
                hint="for example 7",
            )
        batch, row = divmod(int(text), TOGETHER)
        images = scenes[batch].images[row : row + 1]
        model = as_captioner(run.model)
        if isinstance(model, ShowAndTell):
            return [influence_trace(model, images, vocabulary=VOCABULARY, longest=LONGEST)]
        (found,) = greedy(model, to_device_of(model, images), max_length=LONGEST)
        assert found.weights is not None, "attention returns weights"
        words = VOCABULARY.words
        steps = tuple(words[each] for each in [*found.ids, EOS][: len(found.weights)])
        return [overlay(images[0], found.weights, steps=steps, title=f"{run.recipe.name}, {text}")]


def as_captioner(model: nn.Module) -> Captioner:
    """The model, which must be a captioner."""
    assert isinstance(model, Captioner), f"no captioner but {type(model).__name__}"
    return model


def _held_out(
    part: Literal["valid", "test"], settings: CaptionScenesSettings, data: Path | None
) -> CaptionScenes:
    seed = VALID_SEED if part == "valid" else TEST_SEED
    digits = read_mnist(part, data)
    return CaptionScenes(digits, size=settings.size, batch=TOGETHER, seed=seed, in_order=True)


# The loss.


def _loss(model: Captioner, batch: SceneBatch, *, settings: CaptionScenesSettings) -> LossOut:
    """Loss by the likelihood, or with hard attention by its bound."""
    if isinstance(model, ShowAndTell):
        return tell_loss(model, model.see(batch.images), batch.sentences)
    found = model.loss(
        model.encoder(batch.images),
        batch.sentences,
        cover_weight=settings.cover_weight,
        entropy_weight=settings.entropy_weight,
        reward_weight=settings.reward_weight,
    )
    return LossOut(found.loss, n=len(batch.images), logged={"nats": found.nats})


def tell_loss(
    model: ShowAndTell, seen: Float[Tensor, "image d_annotation"], sentences: Sentences
) -> LossOut:
    """The negative log-likelihood of the words."""
    right = sentences.target_out[sentences.target_mask]
    found = token_loss(model.words_after(seen, sentences), right)
    return LossOut(found.loss, n=found.n_tokens, logged={"nats": found.nll / found.n_tokens})


# Metrics of captions and of attention.


class Hits(NamedTuple):
    """The evaluated words of some sentences."""

    is_exact: Bool[Tensor, " image"]
    is_on_name: Bool[Tensor, "image digit"]
    is_on_height: Bool[Tensor, "image digit"]
    is_shown: Bool[Tensor, "image digit"]
    """The scene has such a digit."""


def caption_metrics(model: Captioner, batches: Iterable[SceneBatch]) -> dict[str, float]:
    """Accuracy of sentences and of attention in per cent, in free-running decoding.

    ``exact``: whole sentences. ``on_digit``: the fraction of digit names with more than half of the
    weight on that digit; ``on_height`` the same for the words for its height. A wrong or missing
    word counts as a miss.
    """
    hits = [_hits(model, batch) for batch in batches]
    exact, name, height, shown = (torch.cat(parts) for parts in zip(*hits, strict=True))
    metrics = {"exact": 100 * exact.float().mean().item()}
    if isinstance(model, ShowAttendTell):
        metrics["on_digit"] = 100 * name[shown].float().mean().item()
        metrics["on_height"] = 100 * height[shown].float().mean().item()
    return metrics


def _hits(model: Captioner, batch: SceneBatch) -> Hits:
    found = greedy(model, to_device_of(model, batch.images), max_length=LONGEST)
    said, weights = side_by_side(found, longest=LONGEST)
    is_right = said == batch.sentences.target_out
    is_on = torch.zeros_like(is_right)
    if isinstance(model, ShowAttendTell):
        is_on = _is_on(weights, batch) & is_right
    is_on = is_on.unflatten(1, (MOST, N_WORDS))
    is_shown = batch.about.unflatten(1, (MOST, N_WORDS))[:, :, NAME] >= 0
    return Hits(is_right.all(1), is_on[:, :, NAME], is_on[:, :, HEIGHT], is_shown)


def _is_on(
    weights: Float[Tensor, "image pos cell"], batch: SceneBatch
) -> Bool[Tensor, "image pos"]:
    """Whether more than half of the weight is on the digit of the word."""
    height, width = batch.images.shape[2:]
    maps = weights.unflatten(2, grid_of(weights.shape[2], height=height, width=width))
    about = batch.about.clamp_min(0)[:, :, None].expand(-1, -1, 4)
    windows = batch.windows.gather(1, about)  # [image, pos, 4]
    inside = weight_in_windows(maps.flatten(0, 1), windows.flatten(0, 1))
    return (inside.view_as(batch.about) > HALF) & (batch.about >= 0)


class SideBySide(NamedTuple):
    """Decoded sentences, in rows of one length; on the CPU."""

    said: Int[Tensor, "row pos"]
    """With its end, and filled up with PAD."""
    weights: Float[Tensor, "row pos place"]
    """Zeros after the end; no positions where there is no attention."""


def side_by_side(found: Sequence[Hypothesis], *, longest: int) -> SideBySide:
    """Hypotheses as tensors, to be compared with the references."""
    ends = [[*each.ids, EOS][:longest] for each in found]
    weights = [each.weights for each in found if each.weights is not None]
    n_places = weights[0].shape[1] if weights else 0
    whole = torch.zeros(len(found), longest, n_places)
    for row, each in zip(whole, weights, strict=False):
        row[: len(each)] = each.cpu()
    said = torch.full((len(found), longest), PAD)
    padded = Ragged.of(ends).pad(torch.arange(len(found))).ids
    said[:, : padded.shape[1]] = padded
    return SideBySide(said, whole)


# Weights over an image, word by word: the traces of captioners.


def grid_of(n_cells: int, *, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of a grid of ``n`` cells over an image, with cells as square as possible.

    >>> grid_of(88, height=64, width=88)
    (8, 11)
    """
    pairs = [(rows, n_cells // rows) for rows in range(1, n_cells + 1) if n_cells % rows == 0]
    return min(pairs, key=lambda pair: abs(pair[0] * width - pair[1] * height))


def overlay(
    image: Float[Tensor, "colour height width"],
    weights: Float[Tensor, "step cell"],
    *,
    steps: tuple[str, ...],
    title: str = "",
    kind: str = "overlay",
) -> ImageTrace:
    """The trace of weights over the cells of an image, a word a step."""
    colours, height, width = image.shape
    rows, columns = grid_of(weights.shape[1], height=height, width=width)
    return ImageTrace(
        kind=kind,
        image=image[0] if colours == 1 else image.permute(1, 2, 0),
        steps=steps,
        outlines=torch.zeros(len(steps), 0, 4, 2),
        heat=weights.cpu().unflatten(1, (rows, columns)),
        title=title,
    )


def influence_trace(
    model: ShowAndTell,
    images: Float[Tensor, "1 colour height width"],
    *,
    vocabulary: Vocabulary,
    longest: int,
) -> ImageTrace:
    """For a model without attention: the influence of each part of the image on each word."""
    given = to_device_of(model, images)
    (found,) = greedy(model, given, max_length=longest)
    ids = [*found.ids, EOS]
    sentences = to_device_of(model, Sentences.of(torch.tensor([ids])))
    with torch.enable_grad():
        maps = model.encoder(given).detach().requires_grad_()
        cells = maps.flatten(2).mT  # [1, cell, d_annotation]
        logits = model.words_after(cells.mean(1), sentences)
        said = logits.log_softmax(-1)[range(len(ids)), ids]
        weights = influence(said, cells)[:, 0]
    steps = tuple(vocabulary.words[each] for each in ids)
    title = "Influence of each part of the image on each word"
    return overlay(images[0], weights, steps=steps, title=title, kind="influence")


WHOLE = "Whole sentences, decoded freely; `on_digit` is the fraction of names with more than "
WHOLE += "half of the weight on the digit."
SOFT = CaptionScenesSettings()
RECIPES = (
    SceneCaptionRecipe(
        name="caption-scenes-soft",
        settings=SOFT,
        about="Names each digit and its position, with soft attention for each word.",
        target=97.0,
        other_metrics={"on_digit": 90.0},
        minutes=25.0,
        note=WHOLE,
    ),
    SceneCaptionRecipe(
        name="caption-scenes-hard",
        settings=replace(SOFT, looking="hard"),
        about="The same with hard attention: one cell for each word, chosen by policy gradient.",
        target=97.0,
        other_metrics={"on_digit": 90.0},
        minutes=25.0,
        note=WHOLE,
    ),
    SceneCaptionRecipe(
        name="caption-scenes-tell",
        settings=replace(SOFT, looking="none"),
        about="The control without attention: the image is the first input of the LSTM.",
        system="show_and_tell",
        minutes=20.0,
        note="Whole sentences, decoded freely.",
    ),
)
