"""Recipes `caption-flickr8k-1000*`: captions of photographs, trained on 800 of them.

Xu et al., 2015, Show, Attend and Tell (https://arxiv.org/abs/1502.03044), and Vinyals et al., 2015,
Show and Tell (https://arxiv.org/abs/1411.4555). Both start from a net trained on ImageNet and have
6,000 photographs or more. Here everything is trained on 800, and the language also on captions of
missing photographs; so the goal is not a published number, but to beat two copying baselines: the
most frequent caption, and that of the most similar photograph.

With your own net (``--set backbone=... --set weights=...``) and a file in Karpathy's format
(``--set captions=... --set images=...``) it is the papers' setting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import ImageTrace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.stepper import Hypothesis
from saccade.zoo.metrics.summary_metrics import cider
from saccade.zoo.metrics.translation_metrics import bleu
from saccade.zoo.models.image_encoders import ConvolutionalEncoder, open_backbone
from saccade.zoo.models.show_and_tell import ShowAndTell
from saccade.zoo.models.show_attend_tell import ShowAttendTell
from saccade.zoo.recipes.recipe import InputFile, Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.recipes.scene_captions import (
    Captioner,
    as_captioner,
    influence_trace,
    overlay,
    tell_loss,
)
from saccade.zoo.tasks.digit_captions import Sentences
from saccade.zoo.tasks.photographs import (
    EncodedPhotographs,
    PhotographBatch,
    PhotographBatches,
    Photographs,
    centre_crop,
    decode_image,
    read_flickr8k,
    read_karpathy,
    read_other_sentences,
)
from saccade.zoo.tasks.vocabulary import EOS, Vocabulary
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import (
    Batch,
    BelowOne,
    Few,
    FewOrNone,
    Many,
    NonNegative,
    Side,
    TrainConfig,
    Width,
    Widths,
)

LONGEST = 25  # words, EOS included; one in two hundred of Flickr8k's captions is longer
# A cell is 16 x 16 pixels: captions are no worse with 7 x 7 of them than with four times as many,
# and a step takes a third of the time.
STRIDES = (2, 2, 2, 1, 2)
TOGETHER = 50  # images that are encoded, or described, at once
OTHER_METRICS = ("cider_frequent", "cider_nearest", "bleu4", "bleu4_frequent", "bleu4_nearest")
TRAINING = TrainConfig(
    epochs=60,
    minutes=55.0,
    learning_rate=1e-3,
    optimiser="adamw",
    weight_decay=0.01,
    schedule="cosine",
    warmup=50,
    clip=5.0,
    validate_steps=150,
)


@dataclass(frozen=True, kw_only=True)
class CaptionPhotographsSettings:
    """The images, the model and the search."""

    captions: str = ""
    """A JSON file in Karpathy's format, instead of the available photographs of Flickr8k."""
    images: str = ""
    """The folder with its photographs; default: the folder of the file."""
    backbone: str = ""
    """The image encoder, a net of the package timm; default: a small one is trained."""
    weights: str = ""
    """The safetensors file with that net's weights."""
    looking: Literal["soft", "hard", "none"] = "soft"
    """Attention: soft (weights over all cells), hard (one sampled cell), or none."""
    size: Side = 112
    """Side length of the input image in pixels."""
    margin: FewOrNone = 16
    """Photographs are larger by this many pixels; in training a random crop is used."""
    channels: Widths = (32, 48, 64, 96, 128)
    """Of the five convolutions."""
    d_embed: Width = 128
    """Embedding dimension."""
    d_hidden: Width = 256
    """Units of the LSTM."""
    dropout: BelowOne = 0.4
    """Dropout on annotations, words and features."""
    cover_weight: NonNegative = 0.01
    """Weight of the penalty that makes attention cover every cell in the course of a sentence."""
    entropy_weight: NonNegative = 0.01
    """Of hard attention: weight of the entropy bonus, relative to the likelihood."""
    min_count: Many = 4
    """Rarer words become <unk>."""
    batch: Batch = 32
    """Photographs in a batch, each with all its sentences."""
    n_others: Many = 160
    """Captions of missing Flickr8k photographs in a batch, to train the language model."""
    beam: Few = 5
    """Beam size."""
    length_penalty: NonNegative = 0.7
    """0 prefers short sentences; 1 ranks by the mean log-probability of a word."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class PhotoCaptionRecipe(Recipe):
    """Captions of photographs, compared with two baselines that copy captions."""

    reads_files = True

    system: str = "show_attend_tell"
    task: str = "flickr8k"
    metric: str = "cider"
    other_metrics: Mapping[str, float | None] = field(
        default_factory=lambda: dict.fromkeys(OTHER_METRICS)
    )
    minutes: float = 25.0
    gallery: tuple[str, ...] = ("0", "1")

    def build(self, settings: CaptionPhotographsSettings, data: Path | None) -> Job:
        """Photographs, each encoded once for all of its captions."""
        train, valid = (read_part(part, settings, data) for part in ("train", "valid"))
        words = (sentence for each in train.sentences for sentence in each)
        vocabulary = Vocabulary.build(words, min_count=settings.min_count)
        others = read_other_sentences(data) if settings.n_others and not settings.captions else []
        others = vocabulary.encode_all(others).between(last=EOS)
        encoded = EncodedPhotographs(train.images, train.said(vocabulary), others)

        def batches(epoch: int) -> PhotographBatches:
            return PhotographBatches(
                encoded,
                batch=settings.batch,
                n_others=settings.n_others,
                crop=settings.size,
                seed=settings.training.seed,
                epoch=epoch,
            )

        def validate(model: nn.Module) -> dict[str, float]:
            said = _describe(as_captioner(model), valid, vocabulary=vocabulary, settings=settings)
            return _metrics(said, valid)

        kept = {"words": list(vocabulary.words)}
        return Job(
            model=self.restore(settings, kept),
            batches=batches,
            loss=lambda model, batch: _loss(as_captioner(model), batch, settings=settings),
            validate=validate,
            score="cider",
            is_better="more",
            config=settings.training,
            kept=kept,
        )

    def restore(self, settings: CaptionPhotographsSettings, kept: Mapping[str, Any]) -> Captioner:
        """The untrained model; a backbone comes with its weights."""
        if settings.backbone:
            encoder = open_backbone(settings.backbone, weights=settings.weights)
        else:
            encoder = ConvolutionalEncoder(n_colours=3, channels=settings.channels, strides=STRIDES)
        sizes = {"d_annotation": encoder.d_annotation, "n_words": len(kept["words"])}
        sizes |= {"d_embed": settings.d_embed, "d_hidden": settings.d_hidden}
        if settings.looking == "none":
            return ShowAndTell(encoder, dropout=settings.dropout, **sizes)
        looking = settings.looking
        return ShowAttendTell(encoder, looking=looking, dropout=settings.dropout, **sizes)

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """The metrics on the test photographs, and those of two baselines that copy captions."""
        settings, vocabulary = run.settings, Vocabulary(tuple(run.kept["words"]))
        train, test = (read_part(part, settings, data) for part in ("train", "test"))
        model = as_captioner(run.model)
        said = {
            "": _describe(model, test, vocabulary=vocabulary, settings=settings),
            "_frequent": [most_frequent(train)] * len(test),
            "_nearest": nearest(model.encoder, train, test, size=settings.size),
        }
        return {
            f"{name}{key}": value
            for key, sentences in said.items()
            for name, value in _metrics(sentences, test).items()
        }

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[ImageTrace]:
        """Where attention goes for each word, in a test photograph or an image file."""
        settings, vocabulary = run.settings, Vocabulary(tuple(run.kept["words"]))
        images = centre_crop(_photograph(text, settings, data), settings.size)
        model = as_captioner(run.model)
        if isinstance(model, ShowAndTell):
            return [influence_trace(model, images, vocabulary=vocabulary, longest=LONGEST)]
        (found,) = _search(model, images, settings=settings)
        assert found.weights is not None, "attention returns weights"
        ids = [*found.ids, EOS][: len(found.weights)]
        steps = tuple(vocabulary.words[each] for each in ids)
        title = " ".join(vocabulary.decode(found.ids))
        return [overlay(images[0], found.weights, steps=steps, title=title)]


# Photographs.


def read_part(
    part: Literal["train", "valid", "test"],
    settings: CaptionPhotographsSettings,
    data: Path | None,
) -> Photographs:
    """The available photographs of Flickr8k, or those of a file in Karpathy's format."""
    size = settings.size + settings.margin
    if not settings.captions:
        return read_flickr8k(part, data, size=size)
    images = settings.images or Path(settings.captions).parent
    return read_karpathy(settings.captions, part, images=images, size=size)


def _photograph(text: str, settings: CaptionPhotographsSettings, data: Path | None) -> Tensor:
    """The photograph of a user's input: the number of a test photograph, or a file."""
    if isinstance(text, InputFile):
        size = settings.size + settings.margin
        return decode_image(text.data, text, size=size)[None]
    text = text.strip()
    if text.isdigit():
        test = read_part("test", settings, data)
        if int(text) >= len(test):
            raise UsageError(
                f"expected the number of a test photograph, 0 to {len(test) - 1}, got {text}",
                hint="for example 0",
            )
        return test.images[int(text)][None]
    raise UsageError(
        f"expected the number of a test photograph or an image file, got {text!r}",
        hint="for example 0",
    )


# The loss.


def _loss(
    model: Captioner, batch: PhotographBatch, *, settings: CaptionPhotographsSettings
) -> LossOut:
    """The loss of all captions of a batch's photographs, and of those without a photograph.

    Without a photograph there is one cell of zeros: such a caption trains the language model alone.
    """
    maps = model.encoder(batch.images)
    about = Sentences.of(batch.said.flatten(0, 1))
    seen = _one_loss(model, maps, about, settings=settings)
    if not len(batch.others):
        return seen
    nothing = maps.new_zeros(len(batch.others), maps.shape[1], 1, 1)
    blind = _one_loss(model, nothing, Sentences.of(batch.others), settings=settings)
    logged = {**seen.logged, "nats_blind": blind.logged["nats"]}
    return LossOut(seen.loss + blind.loss, seen.n, logged)


def _one_loss(
    model: Captioner,
    maps: Float[Tensor, "image d_annotation row column"],
    sentences: Sentences,
    *,
    settings: CaptionPhotographsSettings,
) -> LossOut:
    if isinstance(model, ShowAndTell):
        return tell_loss(model, maps.mean((2, 3)), sentences)
    out = model.loss(
        maps,
        sentences,
        # With one cell the coverage penalty is zero.
        cover_weight=settings.cover_weight if maps.shape[2:].numel() > 1 else 0.0,
        entropy_weight=settings.entropy_weight,
    )
    return LossOut(out.loss, n=len(maps), logged={"nats": out.nats})


# Decoded captions, and their metrics.


def _describe(
    model: Captioner,
    photographs: Photographs,
    *,
    vocabulary: Vocabulary,
    settings: CaptionPhotographsSettings,
) -> list[str]:
    """A caption of each photograph."""
    said = []
    for some in centre_crop(photographs.images, settings.size).split(TOGETHER):
        found = _search(model, some, settings=settings)
        said += [" ".join(vocabulary.decode(each.ids)) for each in found]
    return said


def _search(
    model: Captioner,
    images: Float[Tensor, "image colour height width"],
    *,
    settings: CaptionPhotographsSettings,
) -> Sequence[Hypothesis]:
    """The best caption of each image."""
    return beam(
        model,
        to_device_of(model, images),
        size=settings.beam,
        max_length=LONGEST,
        length_penalty=settings.length_penalty,
    ).best


def _metrics(said: Sequence[str], photographs: Photographs) -> dict[str, float]:
    """CIDEr-D and BLEU-4 against all captions of each photograph, on words."""
    references = photographs.references()
    found = bleu(said, references, tokenize="none")
    return {"cider": cider(said, references).score, "bleu4": found.score}


# Baselines that copy captions: a captioner must beat them.


def most_frequent(photographs: Photographs) -> str:
    """The most frequent caption; ties in alphabetical order."""
    counts = Counter(text for each in photographs.references() for text in each)
    return min(counts, key=lambda text: (-counts[text], text))


def nearest(encoder: nn.Module, known: Photographs, asked: Photographs, *, size: int) -> list[str]:
    """The first caption of the most similar photograph, by an encoder's features."""
    library, queries = (_means(encoder, each, size=size) for each in (known, asked))
    # The mean of all photographs is removed before they are compared.
    common = library.mean(0)
    library, queries = (functional.normalize(each - common, dim=1) for each in (library, queries))
    best = (queries @ library.mT).argmax(1).tolist()
    references = known.references()
    return [references[at][0] for at in best]


def _means(
    encoder: nn.Module, photographs: Photographs, *, size: int
) -> Float[Tensor, "image d_annotation"]:
    parts = centre_crop(photographs.images, size).split(TOGETHER)
    return torch.cat([encoder(to_device_of(encoder, some)).mean((2, 3)) for some in parts])


FEW = "CIDEr-D out of 10, trained on 800 photographs without a pretrained net: no published number "
FEW += "is comparable. `frequent` and `nearest` are the baselines."
SOFT = CaptionPhotographsSettings()
RECIPES = (
    PhotoCaptionRecipe(
        name="caption-flickr8k-1000",
        settings=SOFT,
        about="Describes photographs, with soft attention over the image for each word.",
        note=FEW,
    ),
    PhotoCaptionRecipe(
        name="caption-flickr8k-1000-tell",
        settings=replace(SOFT, looking="none"),
        about="Describes photographs without attention: the image is the first input of the LSTM.",
        system="show_and_tell",
        note=FEW,
    ),
)
