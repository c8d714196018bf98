"""Counting instead of training: n-gram models of words and of characters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Few, Many, Part, TrainConfig

if TYPE_CHECKING:
    from saccade.zoo.models.ngram import NgramLanguageModel
    from saccade.zoo.recipes.opened import OpenRun
    from saccade.zoo.tasks.text import TextCorpus
    from saccade.zoo.training.job import Job


@dataclass(frozen=True, kw_only=True)
class NgramSettings:
    """What is counted."""

    order: Few
    """The longest n-grams."""
    is_modified: bool = True
    """Three discounts a length (Chen and Goodman) instead of one (Kneser and Ney)."""
    valid: Part
    """Share of the text that is left out, as for the neural model beside it."""
    n_words: Many = 10_000
    """How many different words, the commonest; all others are one word, <unk>."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """Nothing is trained."""


def read_words(settings: NgramSettings, data: Path | None) -> TextCorpus:
    """The books of `wordlm`."""
    from saccade.zoo.tasks.books import read_gutenberg
    from saccade.zoo.tasks.text import make_corpus

    splits = read_gutenberg(data, valid=settings.valid, test=0.1)
    return make_corpus(splits, unit="word", max_size=settings.n_words)


def read_characters(settings: NgramSettings, data: Path | None) -> TextCorpus:
    """The plays of `charlm-shakespeare`."""
    from saccade.zoo.tasks.books import read_tinyshakespeare
    from saccade.zoo.tasks.text import make_corpus

    splits = read_tinyshakespeare(data, valid=settings.valid, test=0.1)
    return make_corpus(splits, unit="character")


def ngram_recipe(
    *,
    name: str,
    about: str,
    task: str,
    metric: str,
    settings: NgramSettings,
    read_corpus: Any,
    note: str,
) -> Recipe:
    """A recipe for an n-gram model."""

    def build(settings: NgramSettings, data: Path | None) -> Job:
        from saccade.zoo.recipes.ngram_counting import ngram_job

        return ngram_job(settings, read_corpus(settings, data))

    def restore(settings: NgramSettings, kept: Mapping[str, Any]) -> NgramLanguageModel:
        from saccade.zoo.models.ngram import NgramLanguageModel

        del settings  # all there is to know was kept
        return NgramLanguageModel(d_vocab=len(kept["words"]), sizes=kept["sizes"])

    def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
        from saccade.zoo.recipes.ngram_counting import evaluate_ngram

        return evaluate_ngram(run, read_corpus(run.settings, data))

    return Recipe(
        name=name,
        about=about,
        system="ngram",
        task=task,
        metric=metric,
        is_better="less",
        note=note,
        minutes=0.5,
        settings=settings,
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=Later("ngram_counting.trace_levels"),
        sample=Later("language_modelling.sample_text"),
        unknown_words=Later("language_modelling.unknown_units"),
    )


RECIPES = (
    ngram_recipe(
        name="ngram-words",
        about="Counts words: interpolated Kneser-Ney of 16 books.",
        task="gutenberg",
        metric="perplexity",
        settings=NgramSettings(order=4, valid=0.05),
        read_corpus=read_words,
        note="Stands beside `wordlm` on the same words.",
    ),
    ngram_recipe(
        name="ngram-characters",
        about="Counts characters: interpolated Kneser-Ney of Shakespeare's plays.",
        task="tinyshakespeare",
        metric="nats",
        settings=NgramSettings(order=7, valid=0.02),
        read_corpus=read_characters,
        note="Stands beside `charlm-shakespeare` on the same text.",
    ),
)
