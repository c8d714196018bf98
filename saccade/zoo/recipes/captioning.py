"""Training, judging and watching captioners on scenes of digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import ImageTrace
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.metrics.sequence_metrics import HALF, weight_in_windows
from saccade.zoo.models.image_encoders import ConvolutionalEncoder
from saccade.zoo.models.show_and_tell import ShowAndTell
from saccade.zoo.models.show_attend_tell import ShowAttendTell
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.overlays import grid_of, influence_trace, overlay
from saccade.zoo.recipes.seeing import TOGETHER
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
from saccade.zoo.tasks.mnist import read_mnist
from saccade.zoo.tasks.scenes import TEST_SEED, VALID_SEED
from saccade.zoo.tasks.vocabulary import EOS, PAD, Ragged
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.caption_scenes import CaptionScenesSettings

LONGEST = MOST * N_WORDS  # words of a sentence, its end counted
Captioner = ShowAttendTell | ShowAndTell


def scenes_job(settings: CaptionScenesSettings, data: Path | None) -> Job:
    """New scenes at every step."""
    train, seed = read_mnist("train", data), settings.training.seed
    valid = _held_out("valid", settings, data)

    def batches(epoch: int) -> CaptionScenes:
        return CaptionScenes(
            train, size=settings.size, batch=settings.batch, seed=seed, epoch=epoch
        )

    return Job(
        model=scenes_model(settings),
        batches=batches,
        loss=lambda model, batch: scenes_loss(_of(model), batch, settings=settings),
        validate=lambda model: judge(_of(model), valid),
        score="exact",
        is_better="more",
        config=settings.training,
    )


def scenes_model(settings: CaptionScenesSettings) -> Captioner:
    """The untrained model."""
    encoder = ConvolutionalEncoder(n_colours=1, channels=settings.channels)
    sizes = {"d_annotation": encoder.d_annotation, "n_words": len(VOCABULARY)}
    sizes |= {"d_embed": settings.d_embed, "d_hidden": settings.d_hidden}
    if settings.looking == "none":
        return ShowAndTell(encoder, **sizes)
    return ShowAttendTell(encoder, looking=settings.looking, **sizes)


def scenes_loss(model: Captioner, batch: SceneBatch, *, settings: CaptionScenesSettings) -> LossOut:
    """Of the likelihood, of its bound, or without attention the plain one."""
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
    """Minus the likelihood of the words."""
    right = sentences.target_out[sentences.target_mask]
    found = token_loss(model.words_after(seen, sentences), right)
    return LossOut(found.loss, n=found.n_tokens, logged={"nats": found.nll / found.n_tokens})


class Hits(NamedTuple):
    """What became of the words of some sentences."""

    is_exact: Bool[Tensor, " image"]
    is_on_name: Bool[Tensor, "image digit"]
    is_on_height: Bool[Tensor, "image digit"]
    is_shown: Bool[Tensor, "image digit"]
    """There is such a digit."""


def judge(model: Captioner, batches: Iterable[SceneBatch]) -> dict[str, float]:
    """Per cent of sentences, and of looks, that are right, while the model writes on its own.

    ``exact``: whole sentences. ``on_digit``: of the digits' names, how many were said with more
    than half of the weight on that digit; ``on_height`` the same of the words for its height. A
    word that is wrong, or left out, is no hit.
    """
    hits = [_hits(model, batch) for batch in batches]
    exact, name, height, shown = (torch.cat(parts) for parts in zip(*hits, strict=True))
    figures = {"exact": 100 * exact.float().mean().item()}
    if isinstance(model, ShowAttendTell):
        figures["on_digit"] = 100 * name[shown].float().mean().item()
        figures["on_height"] = 100 * height[shown].float().mean().item()
    return figures


def _hits(model: Captioner, batch: SceneBatch) -> Hits:
    found = greedy(model, batch.images, max_length=LONGEST)
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
    """Whether more than half of the weight lay on what the word is about."""
    height, width = batch.images.shape[2:]
    maps = weights.unflatten(2, grid_of(weights.shape[2], height=height, width=width))
    about = batch.about.clamp_min(0)[:, :, None].expand(-1, -1, 4)
    windows = batch.windows.gather(1, about)  # [image, pos, 4]
    inside = weight_in_windows(maps.flatten(0, 1), windows.flatten(0, 1))
    return (inside.view_as(batch.about) > HALF) & (batch.about >= 0)


class SideBySide(NamedTuple):
    """What was said, in rows of one length."""

    said: Int[Tensor, "row pos"]
    """With its end, and filled up with PAD."""
    weights: Float[Tensor, "row pos place"]
    """Zeros behind the end; without a place where there is no attention."""


def side_by_side(found: Sequence[Hypothesis], *, longest: int) -> SideBySide:
    """Hypotheses as tensors, for judging."""
    ends = [[*each.ids, EOS][:longest] for each in found]
    weights = [each.weights for each in found if each.weights is not None]
    n_places = weights[0].shape[1] if weights else 0
    whole = torch.zeros(len(found), longest, n_places)
    for row, each in zip(whole, weights, strict=False):
        row[: len(each)] = each
    said = torch.full((len(found), longest), PAD)
    padded = Ragged.of(ends).pad(torch.arange(len(found))).ids
    said[:, : padded.shape[1]] = padded
    return SideBySide(said, whole)


def evaluate_scenes(run: OpenRun, data: Path | None) -> dict[str, float]:
    """The figures on scenes of the test digits."""
    return judge(_of(run.model), _held_out("test", run.settings, data))


def trace_scene(run: OpenRun, text: str) -> list[ImageTrace]:
    """Where each word of the sentence was looked for, in a test scene."""
    scenes = _held_out("test", run.settings, None)
    n = len(scenes.digits.labels)
    if not text.strip().isdigit() or int(text) >= n:
        raise UsageError(
            f"expected the number of a test scene, 0 to {n - 1}, got {text!r}",
            hint="for example 7",
        )
    batch, row = divmod(int(text), TOGETHER)
    images = scenes[batch].images[row : row + 1]
    model = _of(run.model)
    if isinstance(model, ShowAndTell):
        return [influence_trace(model, images, vocabulary=VOCABULARY, longest=LONGEST)]
    (found,) = greedy(model, images, max_length=LONGEST)
    assert found.weights is not None, "attention leaves weights"
    words = VOCABULARY.words
    steps = tuple(words[each] for each in [*found.ids, EOS][: len(found.weights)])
    return [overlay(images[0], found.weights, steps=steps, title=f"{run.recipe.name}, {text}")]


def _held_out(
    part: Literal["valid", "test"], settings: CaptionScenesSettings, data: Path | None
) -> CaptionScenes:
    seed = VALID_SEED if part == "valid" else TEST_SEED
    digits = read_mnist(part, data)
    return CaptionScenes(digits, size=settings.size, batch=TOGETHER, seed=seed, in_order=True)


def _of(model: nn.Module) -> Captioner:
    """The captioner itself."""
    assert isinstance(model, Captioner), f"no captioner but {type(model).__name__}"
    return model
