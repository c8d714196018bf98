"""Recipes `caption-flickr8k-1000*`: sentences about photographs, learnt from 800 of them.

Xu et al., 2015, Show, Attend and Tell (https://arxiv.org/abs/1502.03044), and Vinyals et al., 2015,
Show and Tell (https://arxiv.org/abs/1411.4555). Both begin with a net that has learnt ImageNet and
have 6,000 photographs or more. Here everything is learnt from 800, and the language also from
sentences about photographs that are not there; so what is asked is no published number, but more
than copying: the sentence said most often, or that of the photograph most alike.

With a net of one's own (``--set backbone=... --set weights=...``) and a file of Karpathy's form
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
from saccade.zoo.recipes.recipe import Recipe
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

LONGEST = 25  # words, the end counted; one in two hundred of Flickr8k's sentences is longer
# A cell is 16 x 16 pixels: with 7 x 7 of them nobody has found captions to be worse than with four
# times as many, and a step takes a third of the time.
STRIDES = (2, 2, 2, 1, 2)
TOGETHER = 50  # images that are encoded, or described, at once
BESIDE = ("cider_frequent", "cider_nearest", "bleu4", "bleu4_frequent", "bleu4_nearest")
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
    """What is shown, who describes it, and how a sentence is searched for."""

    captions: str = ""
    """A JSON file of Karpathy's form, in place of Flickr8k's photographs that are there."""
    images: str = ""
    """The folder with its photographs; that of the file unless told."""
    backbone: str = ""
    """A net of the package timm to see with; a small one is trained unless told."""
    weights: str = ""
    """The safetensors file with that net's weights."""
    looking: Literal["soft", "hard", "none"] = "soft"
    """Everywhere by weights; at one cell, drawn; or once at all, without attention."""
    size: Side = 112
    """Pixels of the side of what is shown."""
    margin: FewOrNone = 16
    """Photographs are so much larger, and while it learns a part is cut out at random."""
    channels: Widths = (32, 48, 64, 96, 128)
    """Of the five convolutions."""
    d_embed: Width = 128
    """Numbers of a word's vector."""
    d_hidden: Width = 256
    """Units of the LSTM."""
    dropout: BelowOne = 0.4
    """Share of annotations, words and features left out while it learns."""
    cover_weight: NonNegative = 0.01
    """How much it counts that every cell should be looked at in the course of a sentence."""
    entropy_weight: NonNegative = 0.01
    """Of hard attention: what a nat of indecision is worth, in nats of likelihood."""
    min_count: Many = 4
    """Words seen less often are not known."""
    batch: Batch = 32
    """Photographs in a batch, each with all its sentences."""
    n_others: Many = 160
    """Sentences in a batch about photographs of Flickr8k that are not here, for the language."""
    beam: Few = 5
    """Hypotheses that are kept while a sentence is searched for."""
    length_penalty: NonNegative = 0.7
    """0 prefers short sentences; 1 weighs by the mean log-probability of a word."""
    training: TrainConfig = TRAINING
    """How it is trained."""


@dataclass(frozen=True, kw_only=True)
class PhotoCaptionRecipe(Recipe):
    """Photographs in words, beside two baselines that copy sentences."""

    system: str = "show_attend_tell"
    task: str = "flickr8k"
    metric: str = "cider"
    beside: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(BESIDE))
    minutes: float = 25.0
    gallery: tuple[str, ...] = ("0", "1")

    def build(self, settings: CaptionPhotographsSettings, data: Path | None) -> Job:
        """Photographs, each looked at once for all of its sentences together."""
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
        """The metrics on the test photographs, and those of two baselines that copy sentences."""
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
        """Where each word of the sentence was looked for, in a test photograph or an image file."""
        settings, vocabulary = run.settings, Vocabulary(tuple(run.kept["words"]))
        images = centre_crop(_photograph(text.strip(), settings, data), settings.size)
        model = as_captioner(run.model)
        if isinstance(model, ShowAndTell):
            return [influence_trace(model, images, vocabulary=vocabulary, longest=LONGEST)]
        (found,) = _search(model, images, settings=settings)
        assert found.weights is not None, "attention leaves weights"
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
    """The photographs of Flickr8k that are there, or those of a file of Karpathy's form."""
    size = settings.size + settings.margin
    if not settings.captions:
        return read_flickr8k(part, data, size=size)
    images = settings.images or Path(settings.captions).parent
    return read_karpathy(settings.captions, part, images=images, size=size)


def _photograph(text: str, settings: CaptionPhotographsSettings, data: Path | None) -> Tensor:
    """The photograph that a user means: the number of a test one, or a file."""
    if text.isdigit():
        test = read_part("test", settings, data)
        if int(text) >= len(test):
            raise UsageError(
                f"expected the number of a test photograph, 0 to {len(test) - 1}, got {text}",
                hint="for example 0",
            )
        return test.images[int(text)][None]
    if not Path(text).is_file():
        raise UsageError(
            f"expected the number of a test photograph or an image file, got {text!r}",
            hint="for example 0",
        )
    size = settings.size + settings.margin
    return decode_image(Path(text).read_bytes(), text, size=size)[None]


# What it is trained by.


def _loss(
    model: Captioner, batch: PhotographBatch, *, settings: CaptionPhotographsSettings
) -> LossOut:
    """The loss of all sentences about the photographs of a batch, and of those about none.

    Where there is no photograph there is one cell to look at, which holds nothing: such a sentence
    teaches what the words themselves make likely.
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
        # Of one cell nothing can be uneven.
        cover_weight=settings.cover_weight if maps.shape[2:].numel() > 1 else 0.0,
        entropy_weight=settings.entropy_weight,
    )
    return LossOut(out.loss, n=len(maps), logged={"nats": out.nats})


# Sentences of the model's own, and what they are worth.


def _describe(
    model: Captioner,
    photographs: Photographs,
    *,
    vocabulary: Vocabulary,
    settings: CaptionPhotographsSettings,
) -> list[str]:
    """A sentence about each photograph."""
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
    """The best sentence about each image."""
    return beam(
        model,
        to_device_of(model, images),
        size=settings.beam,
        max_length=LONGEST,
        length_penalty=settings.length_penalty,
    ).best


def _metrics(said: Sequence[str], photographs: Photographs) -> dict[str, float]:
    """CIDEr-D and BLEU-4 against all sentences about each photograph, on plain words."""
    references = photographs.references()
    found = bleu(said, references, tokenize="none")
    return {"cider": cider(said, references).score, "bleu4": found.score}


# Sentences about photographs that are copied: what a captioner must beat.


def most_frequent(photographs: Photographs) -> str:
    """The sentence that was said most often; of several the first by the alphabet."""
    counts = Counter(text for each in photographs.references() for text in each)
    return min(counts, key=lambda text: (-counts[text], text))


def nearest(encoder: nn.Module, known: Photographs, asked: Photographs, *, size: int) -> list[str]:
    """The first sentence of the photograph that looks most alike to an encoder."""
    library, queries = (_means(encoder, each, size=size) for each in (known, asked))
    # What all photographs have in common says nothing about which is near.
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


FEW = "CIDEr-D of 10, learnt from 800 photographs with no net that has seen others: no number of a "
FEW += "paper stands beside it. `frequent` and `nearest` are the baselines."
SOFT = CaptionPhotographsSettings()
RECIPES = (
    PhotoCaptionRecipe(
        name="caption-flickr8k-1000",
        settings=SOFT,
        about="Describes photographs, looking by soft attention at a part for each word.",
        note=FEW,
    ),
    PhotoCaptionRecipe(
        name="caption-flickr8k-1000-tell",
        settings=replace(SOFT, looking="none"),
        about="Describes photographs without attention: each is read once, as the first word.",
        system="show_and_tell",
        note=FEW,
    ),
)
