"""What all translation recipes share: Multi30k, from raw text to sacreBLEU on its test sentences.

A translator is a module that

- gives ``model(batch: PairBatch)``: the logits [token, d_vocab] of the real target positions, in
  the order of ``batch.target_mask``, each after the right symbols (teacher forcing);
- can be decoded (`saccade.zoo.decoding.stepper.Stepper`): ``start(source: Padded)`` and ``step``.

`saccade.zoo.recipes.translating` does the work; this file is read without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saccade.zoo.recipes.options import Translated, TranslateOptions
from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import BelowOne, Few, Many, NonNegative, TrainConfig

if TYPE_CHECKING:
    from torch import nn

    from saccade.trace.trace import Trace
    from saccade.zoo.recipes.opened import OpenRun
    from saccade.zoo.tasks.pairs import PairBatch
    from saccade.zoo.training.job import Job, LossOut

Coding = Literal["bpe", "wordpiece", "words", "mixed", "spelled"]
Score = Literal["bleu", "perplexity"]
# How a recurrent translator is trained; a recipe adds for how long. The rate falls to zero, so the
# steps end a run; the minutes are there for a slow machine.
RECURRENT = TrainConfig(
    learning_rate=2e-3,
    clip=1.0,
    schedule="linear",
    warmup=200,
    precision="bfloat16",
    average_last=5,
)


@dataclass(frozen=True, kw_only=True)
class TranslationSettings:
    """What can be set about any translator; a recipe's own settings inherit from it."""

    source: str = "de"
    """Translate from: de, en or fr."""
    target: str = "en"
    """Translate to: de, en or fr."""
    coding: Coding = "bpe"
    """What a token is: bpe, wordpiece, words; mixed, spelled: words, and letters of rare ones."""
    n_pieces: Many = 8000
    """How many different tokens there are."""
    is_joint: bool = True
    """Both languages share their tokens."""
    is_lowercase: bool = False
    """Lower-case the source; what is said keeps its case."""
    is_reversed: bool = False
    """Read the source back to front."""
    batch_tokens: Many = 4096
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.0
    """Label smoothing: the share of each target that is spread over all tokens."""
    score: Score = "bleu"
    """What the best weights are chosen by: bleu or perplexity on validation sentences."""
    valid_sentences: Many = 1014
    """BLEU of greedy search is taken of so many validation sentences; there are 1014."""
    beam: Few = 5
    """Hypotheses that are kept when the test sentences are translated."""
    length_penalty: NonNegative = 1.0
    """0 prefers short translations; 1 weighs by the mean log-probability of a token."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """How it is trained."""


MakeModel = Callable[[Any, int, int], "nn.Module"]
"""``make_model(settings, n_source, n_target)``: the last two are sizes of vocabularies."""
LossOf = Callable[[Any, "nn.Module", "PairBatch"], "LossOut"]
"""``loss_of(settings, model, batch)``."""
TraceOf = Callable[["OpenRun", str], "Sequence[Trace]"]
TRACE = Later("translating.trace_of")  # for one attention, at the best translation


def token_loss_of(settings: TranslationSettings, model: nn.Module, batch: PairBatch) -> LossOut:
    """The likelihood of the right tokens, with the settings' label smoothing."""
    from saccade.zoo.recipes.translating import token_loss_out

    return token_loss_out(model, batch, smoothing=settings.smoothing)


def translation_recipe(  # noqa: PLR0913  these are a recipe's own fields
    *,
    name: str,
    about: str,
    system: str,
    settings: TranslationSettings,
    make_model: MakeModel,
    at_least: float | None = None,
    published: float | None = None,
    source: str = "",
    note: str = "",
    minutes: float = 45.0,
    loss_of: LossOf = token_loss_of,
    trace: TraceOf | None = TRACE,
) -> Recipe:
    """A recipe for a translator, whose figure is sacreBLEU on test_2016 with beam search.

    Args:
        settings: a `TranslationSettings`, with what the system itself can be told.
        loss_of: for a system that is trained by more than the likelihood of tokens.
        trace: None for a system without attention; another for one that has several kinds.
    """

    def build(settings: Any, data: Path | None) -> Job:
        from saccade.zoo.recipes.translating import translation_job

        return translation_job(settings, data, make_model=make_model, loss_of=loss_of)

    def restore(settings: Any, kept: Mapping[str, Any]) -> nn.Module:
        from saccade.zoo.recipes.coders import Coders

        coders = Coders.from_kept(settings, kept)
        return make_model(settings, len(coders.source), len(coders.target))

    def translate(
        run: OpenRun, texts: Sequence[str], options: TranslateOptions
    ) -> Sequence[Translated]:
        from saccade.zoo.recipes.coders import Coders
        from saccade.zoo.recipes.translating import translate_texts

        coders = Coders.from_kept(run.settings, run.kept)
        return translate_texts(run.models, texts, coders=coders, options=options)

    return Recipe(
        name=name,
        about=about,
        system=system,
        task="multi30k",
        metric="bleu",
        at_least=at_least,
        published=published,
        source=source,
        note=note,
        minutes=minutes,
        settings=settings,
        build=build,
        restore=restore,
        evaluate=Later("translating.evaluate_translator"),
        trace=trace,
        translate=translate,
        unknown_words=Later("translating.unknown_source_words"),
    )
