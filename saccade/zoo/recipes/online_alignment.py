"""The recipe `hard-attention`: stretched words are transcribed online.

Luo et al., 2016 (https://arxiv.org/abs/1608.01281) transcribe speech. Here the speech is letters
that last some frames, and the test words do not occur in training: see
`saccade.zoo.tasks.stretched_text`. With ``reward_weight=0`` the emission decisions are not trained:
the control.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.metrics.sequence_metrics import character_accuracy, exact_match
from saccade.zoo.models.hard_attention import OnlineTranslator
from saccade.zoo.recipes.recipe import Recipe, Translated, TranslateOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.multi30k import read_multi30k
from saccade.zoo.tasks.pairs import PairBatch, encode_pairs, encode_sources
from saccade.zoo.tasks.stretched_text import (
    SILENCE,
    Stretched,
    WordSplits,
    split_vocabulary,
    stretch,
)
from saccade.zoo.tasks.tokenizers import CharacterTokenizer, tokenizer_from_json
from saccade.zoo.tasks.vocabulary import EOS
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Few, Many, NonNegative, Share, TrainConfig, Width

# Held-out words are always stretched in the same way.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002

TRAINING = TrainConfig(
    steps=3000,
    minutes=15.0,
    learning_rate=3e-3,
    clip=1.0,
    schedule="cosine",
    warmup=100,
    validate_steps=250,
)


@dataclass(frozen=True, kw_only=True)
class HardAttentionSettings:
    """The data and the model."""

    longest_hold: Few = 4
    """Maximum number of frames of a letter."""
    noise: Share = 0.1
    """Fraction of frames that are replaced by a random letter."""
    d_embed: Width = 64
    """Embedding dimension of a letter."""
    d_hidden: Width = 128
    """Units of the GRU."""
    n_samples: Few = 2
    """Sampled paths per word for the estimate of the policy gradient."""
    reward_weight: NonNegative = 1.0
    """Weight of the policy gradient; 0: the emission decisions are not trained."""
    entropy_weight: NonNegative = 0.5
    """Weight of the entropy bonus, relative to the likelihood."""
    batch_tokens: Many = 4096
    """Frames in a batch, padding included."""
    training: TrainConfig = TRAINING
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class HardAttentionRecipe(Recipe):
    """An online translator that writes a word while its frames are read."""

    system: str = "hard_attention"
    task: str = "stretched_text"
    metric: str = "words"

    def build(self, settings: HardAttentionSettings, data: Path | None) -> Job:
        """Words are stretched anew in every epoch."""
        words = _words(data)
        tokenizer = CharacterTokenizer.build([SILENCE, *words.train])
        valid = _said(settings, words.valid, seed=VALID_SEED)
        kept = {"tokenizer": tokenizer.to_json()}

        def batches(epoch: int) -> Iterator[PairBatch]:
            seed = settings.training.seed
            heard = _said(settings, words.train, seed=seed, epoch=epoch)
            pairs = encode_pairs([word.frames for word in heard], words.train, tokenizer=tokenizer)
            return pairs.batches(tokens=settings.batch_tokens, seed=seed, epoch=epoch)

        return Job(
            model=self.restore(settings, kept),
            batches=batches,
            loss=lambda model, batch: _loss(settings, model, batch),
            validate=lambda model: _metrics(model, valid, words.valid, tokenizer=tokenizer),
            score="words",
            is_better="more",
            config=settings.training,
            kept=kept,
        )

    def restore(self, settings: HardAttentionSettings, kept: Mapping[str, Any]) -> OnlineTranslator:
        """The untrained model."""
        n = len(_tokenizer(kept))
        return OnlineTranslator(
            n_source=n, n_target=n, d_embed=settings.d_embed, d_hidden=settings.d_hidden
        )

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Metrics on words that are in no other part."""
        words = _words(data).test
        heard = _said(run.settings, words, seed=TEST_SEED)
        return _metrics(run.model, heard, words, tokenizer=_tokenizer(run.kept))

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The frame at which each letter is emitted; the text is the frames."""
        del data
        tokenizer, model = _tokenizer(run.kept), _online(run.model)
        source = encode_sources([text.strip()], tokenizer)
        max_length = source.ids.shape[1]
        (found,) = greedy(model, to_device_of(model, source), max_length=max_length)
        assert found.weights is not None, "hard attention returns its weights"
        return [
            Trace(
                kind="attention",
                steps=tuple(tokenizer.labels([*found.ids, EOS])[: len(found.weights)]),
                memory=tuple(tokenizer.labels(source.ids[0].tolist())),
                weights=found.weights.cpu(),
                title=tokenizer.decode(found.ids),
                meta={"log_prob": found.log_prob},
            )
        ]

    def translate(
        self,
        run: TrainedRun,
        texts: Sequence[str],
        options: TranslateOptions,
        *,
        data: Path | None = None,
    ) -> list[Translated]:
        """The word in the frames of each text."""
        del data  # the texts come from the user
        tokenizer, model = _tokenizer(run.kept), _online(run.model)
        found = beam(
            model,
            to_device_of(model, encode_sources([text.strip() for text in texts], tokenizer)),
            size=options.beam,
            max_length=options.max_length,
            length_penalty=options.length_penalty,
        ).best
        return [Translated(tokenizer.decode(each.ids), each.log_prob) for each in found]


def _words(data: Path | None) -> WordSplits:
    return split_vocabulary(read_multi30k(data).train.target)


def _said(
    settings: HardAttentionSettings, words: Sequence[str], *, seed: int, epoch: int = 0
) -> list[Stretched]:
    hold, noise = settings.longest_hold, settings.noise
    return stretch(words, longest_hold=hold, noise=noise, seed=seed, epoch=epoch)


def _tokenizer(kept: Mapping[str, Any]) -> CharacterTokenizer:
    """The character tokenizer of a run."""
    tokenizer = tokenizer_from_json(kept["tokenizer"], "the run's alphabet")
    assert isinstance(tokenizer, CharacterTokenizer), f"no letters but {type(tokenizer).__name__}"
    return tokenizer


def _online(model: nn.Module) -> OnlineTranslator:
    assert isinstance(model, OnlineTranslator), f"no online model but {type(model).__name__}"
    return model


def _loss(settings: HardAttentionSettings, model: nn.Module, batch: PairBatch) -> LossOut:
    found = _online(model).loss(
        batch,
        n_samples=settings.n_samples,
        entropy_weight=settings.entropy_weight,
        reward_weight=settings.reward_weight,
    )
    logged = {"nats": -found.bound, "entropy": found.reinforced.entropy.detach()}
    return LossOut(found.loss, len(batch.source), logged)


def _metrics(
    model: nn.Module,
    heard: Sequence[Stretched],
    words: Sequence[str],
    *,
    tokenizer: CharacterTokenizer,
) -> dict[str, float]:
    """Accuracy on words and letters, and the timing.

    ``guessed`` is the fraction of letters, in right words, that were emitted before their first
    frame; ``delay`` is the mean number of frames from a letter's first frame to its emission.
    """
    source = to_device_of(model, encode_sources([word.frames for word in heard], tokenizer))
    found = greedy(_online(model), source, max_length=source.ids.shape[1])
    written = [tokenizer.decode(each.ids) for each in found]
    delays = [
        place - onset
        for each, text, word, right in zip(found, written, heard, words, strict=True)
        if text == right and each.weights is not None
        # The end symbol has no onset.
        for place, onset in zip(each.weights.argmax(-1).tolist(), word.onsets, strict=False)
    ]
    n = max(1, len(delays))
    return {
        "words": 100 * exact_match(written, words).rate,
        "letters": 100 * character_accuracy(written, words).rate,
        "guessed": 100 * sum(delay < 0 for delay in delays) / n,
        "delay": sum(delays) / n,
    }


RECIPES = (
    HardAttentionRecipe(
        name="hard-attention",
        settings=HardAttentionSettings(),
        about="Transcribes stretched words online; policy gradient learns when to emit.",
        note="One frame in ten is a random letter, which looks like a short one: without them "
        "(`--set noise=0 --set steps=2000`) 94 % of words. The paper transcribes speech (TIMIT, "
        "licensed): there is no comparable number.",
        minutes=15.0,
    ),
)
