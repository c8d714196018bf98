"""Recipes `video-digits*`: captions of videos of moving digits.

Yao et al., 2015 (https://arxiv.org/abs/1502.08029), table 1, has four systems: an encoder-decoder
without attention, with attention over frames, with convolutions over space and time, and with both.
On YouTube2Text both help, and both together most (METEOR 0.2868, 0.2900, 0.2832, 0.2960).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import ImageTrace, Trace
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.metrics.sequence_metrics import HALF, weight_in_spans
from saccade.zoo.models.video_describer import VideoDescriber
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.recipes.scene_captions import side_by_side
from saccade.zoo.tasks.mnist import TEST_SEED, VALID_SEED, read_mnist
from saccade.zoo.tasks.videos import (
    MOST,
    N_FRAMES,
    N_WORDS,
    NAME,
    VOCABULARY,
    WAY,
    FilmBatch,
    MovingDigits,
)
from saccade.zoo.tasks.vocabulary import EOS
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Batch, Side, TrainConfig, Width

LONGEST = MOST * N_WORDS  # words of a sentence, EOS included
TOGETHER = 100  # videos in a batch, in evaluation
N_VALID = 2000  # videos in the validation; more would take long for little precision
TRAINING = TrainConfig(
    epochs=4,
    minutes=58.0,
    learning_rate=2e-3,
    schedule="cosine",
    warmup=200,
    clip=1.0,
)


@dataclass(frozen=True, kw_only=True)
class VideoDigitsSettings:
    """The videos and the model."""

    size: Side = 40
    """Side length of a frame in pixels; a digit has 28."""
    looking: Literal["soft", "mean"] = "soft"
    """Attention over the frames, or their mean."""
    has_motion: bool = True
    """Convolutions over space and time in addition to those over each frame."""
    d_frame: Width = 128
    """Dimension of a frame's features."""
    d_embed: Width = 64
    """Embedding dimension."""
    d_hidden: Width = 128
    """Units of the LSTM."""
    batch: Batch = 64
    """Videos in a batch."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class VideoCaptionRecipe(Recipe):
    """Captions of videos of digits, with or without attention over the frames."""

    system: str = "video_describer"
    task: str = "moving_digits"
    metric: str = "exact"
    note: str = (
        "Whole sentences, decoded freely. The paper's videos are not available; its table has "
        "the same four systems."
    )
    gallery: tuple[str, ...] = ("0", "7")

    def build(self, settings: VideoDigitsSettings, data: Path | None) -> Job:
        """New videos at every step."""
        train, seed = read_mnist("train", data), settings.training.seed
        valid = _held_out("valid", settings, data)
        some = [valid[number] for number in range(min(len(valid), N_VALID // TOGETHER))]

        def batches(epoch: int) -> MovingDigits:
            return MovingDigits(
                train, size=settings.size, batch=settings.batch, seed=seed, epoch=epoch
            )

        def validate(model: nn.Module) -> dict[str, float]:
            return film_metrics(_describer(model), some, is_looking=settings.looking == "soft")

        return Job(
            model=self.restore(settings, {}),
            batches=batches,
            loss=_loss,
            validate=validate,
            score="exact",
            is_better="more",
            config=settings.training,
        )

    def restore(self, settings: VideoDigitsSettings, kept: Mapping[str, Any]) -> VideoDescriber:
        """The untrained model."""
        del kept
        return VideoDescriber(
            n_words=len(VOCABULARY),
            size=settings.size,
            d_frame=settings.d_frame,
            d_embed=settings.d_embed,
            d_hidden=settings.d_hidden,
            looking=settings.looking,
            has_motion=settings.has_motion,
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """The metrics on videos of the test digits."""
        films = _held_out("test", run.settings, data)
        return film_metrics(_describer(run.model), films, is_looking=run.settings.looking == "soft")

    def trace(
        self, run: TrainedRun, text: str, *, data: Path | None = None
    ) -> list[Trace | ImageTrace]:
        """Attention of each word over the frames: over the frames side by side, and as a matrix."""
        films = _held_out("test", run.settings, data)
        n = len(films.digits.labels)
        if not text.strip().isdigit() or int(text) >= n:
            raise UsageError(
                f"expected the number of a test video, 0 to {n - 1}, got {text!r}",
                hint="for example 7",
            )
        batch, row = divmod(int(text), TOGETHER)
        frames = films[batch].frames[row : row + 1]
        model = _describer(run.model)
        (found,) = greedy(model, to_device_of(model, frames), max_length=LONGEST)
        assert found.weights is not None, "attention returns weights"
        weights = found.weights.cpu()
        words = VOCABULARY.words
        steps = tuple(words[each] for each in [*found.ids, EOS][: len(weights)])
        return [
            ImageTrace(
                kind="film",
                image=_strip(frames[0, :, 0]),
                steps=steps,
                outlines=torch.zeros(len(steps), 0, 4, 2),
                heat=weights[:, None],  # [word, 1, frame]
                title=f"{run.recipe.name}, {text.strip()}",
            ),
            Trace(
                kind="attention",
                steps=steps,
                memory=tuple(f"frame {number}" for number in range(1, N_FRAMES + 1)),
                weights=weights,
                title=" ".join(steps[:-1]),
            ),
        ]


def _describer(model: nn.Module) -> VideoDescriber:
    """The model, which must be a describer."""
    assert isinstance(model, VideoDescriber), f"no describer but {type(model).__name__}"
    return model


def _held_out(
    part: Literal["valid", "test"], settings: VideoDigitsSettings, data: Path | None
) -> MovingDigits:
    seed = VALID_SEED if part == "valid" else TEST_SEED
    digits = read_mnist(part, data)
    return MovingDigits(digits, size=settings.size, batch=TOGETHER, seed=seed, in_order=True)


def _loss(model: nn.Module, batch: FilmBatch) -> LossOut:
    """The negative log-likelihood of the words."""
    sentences = batch.sentences
    right = sentences.target_out[sentences.target_mask]
    found = token_loss(_describer(model)(batch.frames, sentences).logits, right)
    return LossOut(found.loss, n=found.n_tokens, logged={"nats": found.nll / found.n_tokens})


def film_metrics(
    model: VideoDescriber, batches: Iterable[FilmBatch], *, is_looking: bool
) -> dict[str, float]:
    """Accuracy of sentences, words and attention in per cent, in free-running decoding.

    ``exact``: whole sentences; ``names`` and ``ways``: those words. With attention ``on_name`` and
    ``on_way``: those with more than half of the weight on frames in which the digit is visible; a
    wrong or missing word counts as a miss.
    """
    exact, right, on = [], [], []
    for batch in batches:
        found = greedy(model, to_device_of(model, batch.frames), max_length=LONGEST)
        said, weights = side_by_side(found, longest=LONGEST)
        is_right = said == batch.sentences.target_out  # [film, pos]
        exact.append(is_right.all(1))
        is_on = is_right & _is_on(weights, batch)
        by_word = (each.unflatten(1, (MOST, N_WORDS)) for each in (batch.about, is_right, is_on))
        about, is_right, is_on = by_word
        is_seen = about[:, :, NAME] >= 0
        right.append(is_right[is_seen][:, [NAME, WAY]])
        on.append(is_on[is_seen][:, [NAME, WAY]])
    metrics = {"exact": _per_cent(torch.cat(exact))}
    for names, hits in ((("names", "ways"), right), (("on_name", "on_way"), on)):
        if is_looking or names[0] == "names":
            columns = torch.cat(hits).unbind(1)
            metrics |= {name: _per_cent(each) for name, each in zip(names, columns, strict=True)}
    return metrics


def _is_on(weights: Float[Tensor, "film pos frame"], batch: FilmBatch) -> Bool[Tensor, "film pos"]:
    """Whether more than half of the weight is on frames of the digit of the word."""
    about = batch.about.clamp_min(0)[:, :, None].expand(-1, -1, 2)
    spans = batch.spans.gather(1, about)  # [film, pos, 2]
    inside = weight_in_spans(weights.flatten(0, 1), spans.flatten(0, 1)).view_as(batch.about)
    return (inside > HALF) & (batch.about >= 0)


def _per_cent(hits: Bool[Tensor, " any"]) -> float:
    return 100 * hits.float().mean().item()


def _strip(frames: Float[Tensor, "frame height width"]) -> Float[Tensor, "height all_widths"]:
    """The frames side by side, with a line between them."""
    marked = frames.clone()
    marked[:, :, -1] = 0.5
    return torch.cat(list(marked), dim=1)


BOTH = VideoDigitsSettings()
RECIPES = (
    VideoCaptionRecipe(
        name="video-digits",
        settings=BOTH,
        about="Describes moving digits in a video, by attention over frames and 3-D convolutions.",
        minutes=25.0,
    ),
    VideoCaptionRecipe(
        name="video-digits-attention",
        settings=replace(BOTH, has_motion=False),
        about="The same by attention over frames, each encoded separately.",
        minutes=15.0,
    ),
    VideoCaptionRecipe(
        name="video-digits-motion",
        settings=replace(BOTH, looking="mean"),
        about="The same by 3-D convolutions, without attention: the mean over frames.",
        minutes=25.0,
        gallery=(),
    ),
    VideoCaptionRecipe(
        name="video-digits-plain",
        settings=replace(BOTH, looking="mean", has_motion=False),
        about="The control: each frame encoded separately, and the mean over frames.",
        minutes=15.0,
        gallery=(),
    ),
)
