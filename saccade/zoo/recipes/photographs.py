"""Training, judging and watching captioners on photographs, and what they must beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.trace.trace import ImageTrace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.metrics.summary_metrics import cider
from saccade.zoo.metrics.translation_metrics import bleu
from saccade.zoo.models.image_encoders import ConvolutionalEncoder, open_backbone
from saccade.zoo.models.show_and_tell import ShowAndTell
from saccade.zoo.models.show_attend_tell import ShowAttendTell
from saccade.zoo.recipes.captioning import Captioner, tell_loss
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.overlays import influence_trace, overlay
from saccade.zoo.recipes.photograph_baselines import most_frequent, nearest
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
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.caption_flickr8k import CaptionPhotographsSettings

LONGEST = 25  # words, the end counted; one in two hundred of Flickr8k's sentences is longer
# A cell is 16 x 16 pixels: with 7 x 7 of them nobody has found captions to be worse than with four
# times as many, and a step takes a third of the time.
STRIDES = (2, 2, 2, 1, 2)
TOGETHER = 50  # images that are described at once


def photographs_job(settings: CaptionPhotographsSettings, data: Path | None) -> Job:
    """Photographs, each with all of its sentences at once: it is looked at once for all of them."""
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
        return scores(describe(_of(model), valid, vocabulary=vocabulary, settings=settings), valid)

    kept = {"words": list(vocabulary.words)}
    return Job(
        model=photographs_model(settings, kept),
        batches=batches,
        loss=lambda model, batch: photographs_loss(_of(model), batch, settings=settings),
        validate=validate,
        score="cider",
        is_better="more",
        config=settings.training,
        kept=kept,
    )


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


def photographs_model(settings: CaptionPhotographsSettings, kept: Mapping[str, Any]) -> Captioner:
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


def photographs_loss(
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


def describe(
    model: Captioner,
    photographs: Photographs,
    *,
    vocabulary: Vocabulary,
    settings: CaptionPhotographsSettings,
) -> list[str]:
    """A sentence about each photograph."""
    said = []
    for some in centre_crop(photographs.images, settings.size).split(TOGETHER):
        found = beam(
            model,
            some,
            size=settings.beam,
            max_length=LONGEST,
            length_penalty=settings.length_penalty,
        )
        said += [" ".join(vocabulary.decode(each.ids)) for each in found.best]
    return said


def scores(said: Sequence[str], photographs: Photographs) -> dict[str, float]:
    """CIDEr-D and BLEU-4 against all sentences about each photograph, on plain words."""
    references = photographs.references()
    found = bleu(said, references, tokenize="none")
    return {"cider": cider(said, references).score, "bleu4": found.score}


def evaluate_photographs(run: OpenRun, data: Path | None) -> dict[str, float]:
    """The scores on the test photographs, and those of two baselines that write nothing new."""
    settings, vocabulary = run.settings, Vocabulary(tuple(run.kept["words"]))
    train, test = (read_part(part, settings, data) for part in ("train", "test"))
    model = _of(run.model)
    said = {
        "": describe(model, test, vocabulary=vocabulary, settings=settings),
        "_frequent": [most_frequent(train)] * len(test),
        "_nearest": nearest(model.encoder, train, test, size=settings.size),
    }
    return {f"{name}{key}": x for key, s in said.items() for name, x in scores(s, test).items()}


def trace_photograph(run: OpenRun, text: str) -> list[ImageTrace]:
    """Where each word of the sentence was looked for, in a test photograph or an image file."""
    settings, vocabulary = run.settings, Vocabulary(tuple(run.kept["words"]))
    images = centre_crop(_one(text.strip(), settings), settings.size)
    model = _of(run.model)
    if isinstance(model, ShowAndTell):
        return [influence_trace(model, images, vocabulary=vocabulary, longest=LONGEST)]
    (found,) = beam(
        model,
        images,
        size=settings.beam,
        max_length=LONGEST,
        length_penalty=settings.length_penalty,
    ).best
    assert found.weights is not None, "attention leaves weights"
    ids = [*found.ids, EOS][: len(found.weights)]
    steps = tuple(vocabulary.words[each] for each in ids)
    title = " ".join(vocabulary.decode(found.ids))
    return [overlay(images[0], found.weights, steps=steps, title=title)]


def _one(text: str, settings: CaptionPhotographsSettings) -> Tensor:
    """The photograph that a user means: the number of a test one, or a file."""
    if text.isdigit():
        test = read_part("test", settings, None)
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


def _of(model: nn.Module) -> Captioner:
    """The captioner itself."""
    assert isinstance(model, Captioner), f"no captioner but {type(model).__name__}"
    return model
