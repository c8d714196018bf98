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

from dataclasses import dataclass, replace
from typing import Literal

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import (
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


BESIDE = ("cider_frequent", "cider_nearest", "bleu4", "bleu4_frequent", "bleu4_nearest")


def _recipe(
    name: str, settings: CaptionPhotographsSettings, *, about: str, system: str, note: str
) -> Recipe:
    return Recipe(
        name=name,
        about=about,
        system=system,
        task="flickr8k",
        metric="cider",
        beside=dict.fromkeys(BESIDE),
        note=note,
        minutes=25.0,
        settings=settings,
        build=Later("photographs.photographs_job"),
        restore=Later("photographs.photographs_model"),
        evaluate=Later("photographs.evaluate_photographs"),
        trace=Later("photographs.trace_photograph"),
        gallery=("0", "1"),
    )


FEW = "CIDEr-D of 10, learnt from 800 photographs with no net that has seen others: no number of a "
FEW += "paper stands beside it. `frequent` and `nearest` are the baselines."
SOFT = CaptionPhotographsSettings()
RECIPES = (
    _recipe(
        "caption-flickr8k-1000",
        SOFT,
        about="Describes photographs, looking by soft attention at a part for each word.",
        system="show_attend_tell",
        note=FEW,
    ),
    _recipe(
        "caption-flickr8k-1000-tell",
        replace(SOFT, looking="none"),
        about="Describes photographs without attention: each is read once, as the first word.",
        system="show_and_tell",
        note=FEW,
    ),
)
