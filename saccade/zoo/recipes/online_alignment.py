"""The recipe `hard-attention`: stretched words are transcribed online.

Luo et al., 2016 (https://arxiv.org/abs/1608.01281) transcribe speech. Here the speech is letters
that last some frames, with silences between, as in slow speech: a minimal substitute, of real
words, in which the model must learn without supervision where one letter ends and the next begins.
The test words do not occur in training. With ``reward_weight=0`` the emission decisions are not
trained: the control.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

import torch
from torch import nn

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.metrics.sequence_metrics import character_accuracy, exact_match
from saccade.zoo.models.hard_attention import OnlineTranslator
from saccade.zoo.recipes.recipe import Recipe, Translated, TranslateOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.multi30k import read_multi30k
from saccade.zoo.tasks.pairs import PairBatch, encode_pairs, encode_sources
from saccade.zoo.tasks.tokenizers import CharacterTokenizer, tokenizer_from_json
from saccade.zoo.tasks.vocabulary import EOS
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Few, Many, NonNegative, Share, TrainConfig, Width

# The task.

SILENCE = "_"
SHORTEST, LONGEST = 2, 12
"""Letters in a word; longer words are rare."""


class WordSplits(NamedTuple):
    """Training, validation and test words; no word is in two parts."""

    train: list[str]
    valid: list[str]
    test: list[str]


def split_vocabulary(texts: Iterable[str]) -> WordSplits:
    """The different words of some texts, every tenth for validation and every tenth for the test.

    >>> split_vocabulary(["the quick brown fox", "jumps over a lazy dog that was asleep"]).test
    ['the']
    """
    words = {word for text in texts for word in re.findall(r"[a-z]+", text.lower())}
    kept = sorted(word for word in words if SHORTEST <= len(word) <= LONGEST)
    valid, test = kept[8::10], kept[9::10]
    held_out = {*valid, *test}
    found = WordSplits([word for word in kept if word not in held_out], valid, test)
    if not found.test:
        raise UsageError(
            f"{len(kept)} different words are too few to hold some out",
            hint="give a text with at least ten",
        )
    return found


class Stretched(NamedTuple):
    """A stretched word."""

    frames: str
    """A letter or a silence each."""
    onsets: list[int]
    """The first frame of each letter."""


def stretch(
    words: Sequence[str], *, longest_hold: int, noise: float, seed: int, epoch: int = 0
) -> list[Stretched]:
    """Stretch each word; depends only on ``(seed, epoch)``.

    Each letter is held for 1 to ``longest_hold`` frames, after 0 to 2 frames of silence, or 1 to 2
    where the letter before is the same: otherwise "ll" would equal a long "l".

    >>> stretch(["hello"], longest_hold=3, noise=0.0, seed=1)
    [Stretched(frames='__heelll__ll__ooo', onsets=[2, 3, 5, 10, 14])]

    Args:
        noise: Fraction of frames that are replaced by a random letter.
    """
    generator = generator_of(seed, epoch)
    n = sum(map(len, words))
    held = iter(torch.randint(1, longest_hold + 1, (n,), generator=generator).tolist())
    silent = iter(torch.randint(0, 3, (n,), generator=generator).tolist())
    said = [_stretched(word, held, silent) for word in words]
    return _with_noise(said, noise=noise, generator=generator) if noise else said


def _stretched(word: str, held: Iterator[int], silent: Iterator[int]) -> Stretched:
    frames, onsets, before = "", [], ""
    for letter in word:
        frames += SILENCE * max(next(silent), letter == before)
        onsets.append(len(frames))
        frames += letter * next(held)
        before = letter
    return Stretched(frames, onsets)


def _with_noise(
    said: Sequence[Stretched], *, noise: float, generator: torch.Generator
) -> list[Stretched]:
    n = sum(len(word.frames) for word in said)
    lost = iter((torch.rand(n, generator=generator) < noise).tolist())
    other = iter(torch.randint(len(ascii_lowercase), (n,), generator=generator).tolist())
    return [
        word._replace(
            frames="".join(
                ascii_lowercase[instead] if is_lost else frame
                for frame, is_lost, instead in zip(word.frames, lost, other, strict=False)
            )
        )
        for word in said
    ]


# The recipe.

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
