"""What all recipes for language models share: a text in three parts, and nats a symbol.

`saccade.zoo.recipes.language_modelling` does the work; this file is read without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import Few, Many, Part, Share, TrainConfig

if TYPE_CHECKING:
    from saccade.zoo.models.language_model import LanguageModel
    from saccade.zoo.recipes.opened import OpenRun
    from saccade.zoo.tasks.text import TextCorpus
    from saccade.zoo.training.job import Job


@dataclass(frozen=True, kw_only=True)
class LanguageModelSettings:
    """What can be set about any neural language model; a recipe's own settings inherit from it."""

    valid: Part = 0.05
    """Share of the text that is held out to choose the best weights by."""
    streams: Many = 32
    """The text is cut into so many streams, which are read side by side."""
    window: Many = 128
    """Symbols of a stream that are read at once; gradients go no further back."""
    test_streams: Many = 4
    """The same for the test text: few, because each begins without a past."""
    ngram_share: Share = 0.0
    """How much n-grams of the training text have to say in the figures, beside the network."""
    ngram_order: Few = 5
    """The longest of these n-grams."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """How it is trained."""


ReadCorpus = Callable[[Any, Path | None], "TextCorpus"]
"""``read_corpus(settings, data)``."""
MakeModel = Callable[[Any, int], "LanguageModel"]
"""``make_model(settings, d_vocab)``."""


def make_rnn(settings: Any, d_vocab: int) -> LanguageModel:
    """The untrained stack of cells, from settings that have a field for each of its arguments."""
    from saccade.zoo.models.rnn_language_model import RnnLanguageModel

    return RnnLanguageModel(
        d_vocab=d_vocab,
        d_embed=settings.d_embed,
        d_hidden=settings.d_hidden,
        n_layers=settings.n_layers,
        cell=settings.cell,
        dropout=settings.dropout,
        is_tied=settings.is_tied,
    )


def language_model_recipe(  # noqa: PLR0913  these are a recipe's own fields
    *,
    name: str,
    about: str,
    system: str,
    task: str,
    metric: str,
    settings: LanguageModelSettings,
    read_corpus: ReadCorpus,
    make_model: MakeModel,
    at_least: float | None = None,
    published: float | None = None,
    source: str = "",
    note: str = "",
    minutes: float = 45.0,
) -> Recipe:
    """A recipe for a neural language model, whose figure is nats or perplexity on the test text."""

    def build(settings: Any, data: Path | None) -> Job:
        from saccade.zoo.recipes.language_modelling import language_model_job

        return language_model_job(settings, read_corpus(settings, data), make_model=make_model)

    def restore(settings: Any, kept: Mapping[str, Any]) -> LanguageModel:
        return make_model(settings, len(kept["words"]))

    def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
        from saccade.zoo.recipes.language_modelling import evaluate_language_model

        return evaluate_language_model(run, read_corpus(run.settings, data))

    return Recipe(
        name=name,
        about=about,
        system=system,
        task=task,
        metric=metric,
        is_better="less",
        at_least=at_least,
        beside={f"{metric}_alone": None} if settings.ngram_share else {},
        published=published,
        source=source,
        note=note,
        minutes=minutes,
        settings=settings,
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=Later("language_modelling.trace_influence"),
        sample=Later("language_modelling.sample_text"),
        unknown_words=Later("language_modelling.unknown_units"),
    )
