"""Shared by all translation recipes: Multi30k, from raw text to sacreBLEU on its test sentences.

A translator is a module that

- gives ``model(batch: PairBatch)``: the logits [token, d_vocab] of the real target positions, in
  the order of ``batch.target_mask``, each after the right symbols (teacher forcing);
- can be decoded (`saccade.zoo.decoding.stepper.Stepper`): ``start(source: Padded)`` and ``step``.

A recipe for one is a subclass of `Translation`, or of `AttentionTranslation` if its steps have
attention weights; `saccade.zoo.recipes.translators` has them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from saccade.errors import RecipeError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import Ensemble
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Hypothesis, Stepper
from saccade.zoo.metrics.sequence_metrics import bleu_by_length, perplexity
from saccade.zoo.metrics.translation_metrics import bleu, chrf, ter
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.recipe import Recipe, Translated, TranslateOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.multi30k import SentencePairs, read_multi30k
from saccade.zoo.tasks.pairs import PairBatch, Pairs, encode_pairs, encode_sources
from saccade.zoo.tasks.rare_words import MixedWords, SpelledWords
from saccade.zoo.tasks.subwords import Subwords
from saccade.zoo.tasks.tokenizers import Tokenizer, WordTokenizer, tokenizer_from_json
from saccade.zoo.tasks.vocabulary import EOS, Padded
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import BelowOne, Few, Many, NonNegative, TrainConfig

# Sentences in a batch of the search. Sorted by length first, to reduce padding.
TOGETHER = 128
# A translation may have twice as many tokens as its source, and a few more: on Multi30k none needs
# more, and it bounds the time of a system that has not learnt to end.
TIMES, MORE = 2, 10

Coding = Literal["bpe", "wordpiece", "words", "mixed", "spelled"]
Score = Literal["bleu", "perplexity"]
# Training settings of recurrent translators; a recipe adds the duration. The learning rate falls to
# zero, so the steps end a run; the minutes are a limit for slow machines.
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
    """The settings of any translator; each recipe inherits from it."""

    source: str = "de"
    """Translate from: de, en or fr."""
    target: str = "en"
    """Translate to: de, en or fr."""
    coding: Coding = "bpe"
    """Tokenizer: bpe, wordpiece, words; mixed, spelled: words, and letters of rare words."""
    n_pieces: Many = 8000
    """Vocabulary size."""
    is_joint: bool = True
    """One vocabulary for both languages."""
    is_lowercase: bool = False
    """Lower-case the source; the target keeps its case."""
    is_reversed: bool = False
    """Reverse the source."""
    batch_tokens: Many = 4096
    """Tokens in a batch on its larger side, padding included."""
    smoothing: BelowOne = 0.0
    """Label smoothing: the fraction of each target that is spread over all tokens."""
    score: Score = "bleu"
    """Validation metric: bleu or perplexity."""
    valid_sentences: Many = 1014
    """Number of validation sentences for the BLEU of greedy search; there are 1014."""
    beam: Few = 5
    """Beam size on the test sentences."""
    length_penalty: NonNegative = 1.0
    """0 prefers short translations; 1 ranks by the mean log-probability of a token."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class Translation(Recipe):
    """A translator, whose metric is sacreBLEU on test_2016 with beam search.

    A subclass makes the model, and overrides the loss if it is more than the likelihood of tokens.
    """

    task: str = "multi30k"
    metric: str = "bleu"
    minutes: float = 45.0

    @abstractmethod
    def make_model(self, settings: Any, n_source: int, n_target: int) -> nn.Module:
        """The model that the settings describe.

        Args:
            n_source: the size of the source's vocabulary.
            n_target: the size of the target's vocabulary.
        """

    def loss(self, settings: Any, model: nn.Module, batch: PairBatch) -> LossOut:
        """The loss of the target tokens, with the settings' label smoothing."""
        return token_loss_out(model, batch, smoothing=settings.smoothing)

    def build(self, settings: TranslationSettings, data: Path | None) -> Job:
        """Read Multi30k, train the tokenizer, make the model."""
        splits = read_multi30k(data, source=settings.source, target=settings.target)
        tokenizers = Tokenizers.learn(settings, splits.train)
        pairs, valid = tokenizers.pairs(splits.train), tokenizers.pairs(splits.valid)
        some = SentencePairs(*(side[: settings.valid_sentences] for side in splits.valid))
        return Job(
            model=self.make_model(settings, len(tokenizers.source), len(tokenizers.target)),
            batches=lambda epoch: pairs.batches(
                tokens=settings.batch_tokens, seed=settings.training.seed, epoch=epoch
            ),
            loss=lambda model, batch: self.loss(settings, model, batch),
            validate=lambda model: _validate(model, valid, some, tokenizers=tokenizers),
            score=settings.score,
            is_better="more" if settings.score == "bleu" else "less",
            config=settings.training,
            kept=tokenizers.to_kept(),
        )

    def restore(self, settings: TranslationSettings, kept: Mapping[str, Any]) -> nn.Module:
        """The model for the stored vocabulary."""
        tokenizers = Tokenizers.from_kept(settings, kept)
        return self.make_model(settings, len(tokenizers.source), len(tokenizers.target))

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Metrics on test_2016, on detokenised text; BLEU also by the source's length."""
        settings = run.settings
        test = read_multi30k(data, source=settings.source, target=settings.target).test
        tokenizers = Tokenizers.from_kept(settings, run.kept)
        options = search_options(settings)
        found = translate_texts(run.models, test.source, tokenizers=tokenizers, options=options)
        said = [each.text for each in found]
        scores = {
            "bleu": bleu(said, test.target).score,
            "chrf": chrf(said, test.target).score,
            "ter": ter(said, test.target).score,
        }
        if len(run.models) == 1:
            scores["perplexity"] = pairs_perplexity(run.model, tokenizers.pairs(test))
        n_words = [len(text.split()) for text in test.source]
        for each in bleu_by_length(said, test.target, n_words):
            scores[f"bleu_of_{each.shortest}_to_{each.longest}_words"] = each.bleu
        return scores

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> list[Translated]:
        """Translations of sentences, by one model or the mean of several."""
        del data  # the sentences come from the user
        tokenizers = Tokenizers.from_kept(run.settings, run.kept)
        return translate_texts(run.models, texts, tokenizers=tokenizers, options=options)

    def unknown_words(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[str]:
        """Words of a source sentence that the run reads as ``<unk>``."""
        tokenizers = Tokenizers.from_kept(run.settings, run.kept)
        return tokenizers.source.unknown(tokenizers.cased(text))


@dataclass(frozen=True, kw_only=True)
class AttentionTranslation(Translation):
    """A translator whose every step has weights on the tokens of the source."""

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """Tokens of the best translation against those of the source: one trace of one attention.

        A system with several kinds of attention overrides this.
        """
        del data  # the sentence comes from the user
        tokenizers = Tokenizers.from_kept(run.settings, run.kept)
        source = tokenizers.sources([text])
        (best,) = search([run.model], source, options=search_options(run.settings))
        assert best.weights is not None, f"{run.recipe.name} returns no weights"
        memory, weights = tokenizers.source.labels(source.ids[0].tolist()), best.weights.cpu()
        if tokenizers.is_reversed:  # in reading order; the end symbol was always last
            order = [*range(len(memory) - 2, -1, -1), len(memory) - 1]
            memory, weights = [memory[at] for at in order], weights[:, order]
        steps = tokenizers.target.labels([*best.ids, EOS])[: len(weights)]
        return [
            Trace(
                kind="attention",
                steps=tuple(steps),
                memory=tuple(memory),
                weights=weights,
                title=tokenizers.target.decode(best.ids),
                meta={"source": text, "log_prob": best.log_prob},
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Tokenizers:
    """The tokenizers of source and target."""

    source: Tokenizer
    target: Tokenizer
    is_lowercase: bool
    is_reversed: bool

    @classmethod
    def learn(cls, settings: TranslationSettings, pairs: SentencePairs) -> Tokenizers:
        """From training sentences."""
        sources = [_cased(settings.is_lowercase, text) for text in pairs.source]
        if settings.is_joint:
            source = target = _learn(settings, [*sources, *pairs.target])
        else:
            source, target = _learn(settings, sources), _learn(settings, pairs.target)
        return cls._with(settings, source, target)

    @classmethod
    def from_kept(cls, settings: TranslationSettings, kept: Mapping[str, Any]) -> Tokenizers:
        """Restored from a run."""
        held = kept.get("tokenizers")
        if not held:
            raise RecipeError("the run has kept no vocabulary", hint="train it again")
        tokenizers = [tokenizer_from_json(each, "the run's vocabulary") for each in held]
        return cls._with(settings, tokenizers[0], tokenizers[-1])

    @classmethod
    def _with(
        cls, settings: TranslationSettings, source: Tokenizer, target: Tokenizer
    ) -> Tokenizers:
        return cls(
            source=source,
            target=target,
            is_lowercase=settings.is_lowercase,
            is_reversed=settings.is_reversed,
        )

    def cased(self, text: str) -> str:
        """A source sentence in the case that the system reads."""
        return _cased(self.is_lowercase, text)

    def to_kept(self) -> dict[str, Any]:
        """As a run stores them; a shared tokenizer once."""
        tokenizers = [self.source] if self.source is self.target else [self.source, self.target]
        return {"tokenizers": [tokenizer.to_json() for tokenizer in tokenizers]}

    def pairs(self, pairs: SentencePairs) -> Pairs:
        """Encode sentences with their translations."""
        return encode_pairs(
            [self.cased(text) for text in pairs.source],
            pairs.target,
            tokenizer=self.source,
            target_tokenizer=self.target,
            is_reversed=self.is_reversed,
        )

    def sources(self, texts: Sequence[str]) -> Padded:
        """Encode source sentences."""
        cased = [self.cased(text) for text in texts]
        return encode_sources(cased, self.source, is_reversed=self.is_reversed)


def _learn(settings: TranslationSettings, texts: Sequence[str]) -> Tokenizer:
    match settings.coding:
        case "bpe" | "wordpiece":
            return Subwords.train(texts, size=settings.n_pieces, kind=settings.coding)
        case "words":
            return WordTokenizer.build(texts, max_size=settings.n_pieces)
        case "mixed":
            return MixedWords.build(texts, n_words=settings.n_pieces)
        case "spelled":
            return SpelledWords.build(texts, n_words=settings.n_pieces)


def _cased(is_lowercase: bool, text: str) -> str:  # noqa: FBT001  one flag and a text
    return text.lower() if is_lowercase else text


def token_loss_out(model: nn.Module, batch: PairBatch, *, smoothing: float) -> LossOut:
    """The loss of a translator, which gives logits for real target positions only."""
    found = token_loss(model(batch), batch.target_out[batch.target_mask], smoothing=smoothing)
    return LossOut(found.loss, found.n_tokens, {"nats": found.nll / found.n_tokens})


def pairs_perplexity(model: nn.Module, pairs: Pairs, *, tokens: int = 4096) -> float:
    """Perplexity per target token, given the sources."""
    nll, n_tokens = 0.0, 0
    for batch in pairs.in_order(tokens=tokens):
        here: PairBatch = to_device_of(model, batch)
        found = token_loss(model(here), here.target_out[here.target_mask])
        nll, n_tokens = nll + found.nll.item(), n_tokens + found.n_tokens
    return perplexity(nll, n_tokens).perplexity


def translate_texts(
    models: Sequence[nn.Module],
    texts: Sequence[str],
    *,
    tokenizers: Tokenizers,
    options: TranslateOptions,
) -> list[Translated]:
    """Translate sentences, with one model or the mean of several."""
    found = search(models, tokenizers.sources(texts), options=options)
    return [Translated(tokenizers.target.decode(each.ids), each.log_prob) for each in found]


def search_options(settings: TranslationSettings) -> TranslateOptions:
    """The search options of the recipe itself."""
    return TranslateOptions(beam=settings.beam, length_penalty=settings.length_penalty)


def search(
    models: Sequence[nn.Module], source: Padded, *, options: TranslateOptions
) -> list[Hypothesis]:
    """The best hypothesis of each sentence."""
    stepper = _stepper(models)
    lengths = source.mask.sum(1)
    found: dict[int, Hypothesis] = {}
    for rows in lengths.argsort().split(TOGETHER):
        width = int(lengths[rows].max())
        part = Padded(source.ids[rows, :width], source.mask[rows, :width])
        limit = (TIMES * lengths[rows] + MORE).clamp_max(options.max_length)
        best = _search(stepper, to_device_of(models[0], part), limit, options)
        found.update(zip(rows.tolist(), best, strict=True))
    return [found[row] for row in range(len(lengths))]


def _validate(
    model: nn.Module, pairs: Pairs, sentences: SentencePairs, *, tokenizers: Tokenizers
) -> dict[str, float]:
    scores = {"perplexity": pairs_perplexity(model, pairs)}
    if sentences.source:
        options = TranslateOptions(beam=1)
        found = translate_texts([model], sentences.source, tokenizers=tokenizers, options=options)
        scores["bleu"] = bleu([each.text for each in found], sentences.target).score
    return scores


def _search(
    stepper: Stepper, source: Padded, limit: Tensor, options: TranslateOptions
) -> list[Hypothesis]:
    if options.beam == 1:
        return greedy(stepper, source, max_length=int(limit.max()))
    return beam(
        stepper,
        source,
        size=options.beam,
        max_length=limit,
        length_penalty=options.length_penalty,
    ).best


def _stepper(models: Sequence[nn.Module]) -> Stepper:
    steppers = [model for model in models if isinstance(model, Stepper)]
    assert len(steppers) == len(models), "a translator must have `start` and `step`"
    return steppers[0] if len(steppers) == 1 else Ensemble(steppers)
