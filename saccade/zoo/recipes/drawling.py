"""Training, judging and watching a model that writes words down while they are drawled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.metrics.sequence_metrics import character_accuracy, exact_match
from saccade.zoo.models.hard_attention import OnlineTranslator
from saccade.zoo.recipes.hard_attention import HardAttentionSettings
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.options import Translated, TranslateOptions
from saccade.zoo.tasks.multi30k import read_multi30k
from saccade.zoo.tasks.pairs import PairBatch, encode_pairs, encode_sources
from saccade.zoo.tasks.stretched_text import SILENCE, Drawled, WordSplits, drawl, split_vocabulary
from saccade.zoo.tasks.tokenizers import CharacterCoder, coder_from_json
from saccade.zoo.tasks.vocabulary import EOS
from saccade.zoo.training.job import Job, LossOut

# Held-out words are said the same way every time.
VALID_SEED, TEST_SEED = 1_000_001, 1_000_002


def drawling_job(settings: HardAttentionSettings, data: Path | None) -> Job:
    """Words are said anew in every epoch."""
    words = _words(data)
    coder = CharacterCoder.build([SILENCE, *words.train])
    valid = _said(settings, words.valid, seed=VALID_SEED)

    def batches(epoch: int) -> Iterator[PairBatch]:
        seed = settings.training.seed
        heard = _said(settings, words.train, seed=seed, epoch=epoch)
        pairs = encode_pairs([word.frames for word in heard], words.train, coder=coder)
        return pairs.batches(tokens=settings.batch_tokens, seed=seed, epoch=epoch)

    return Job(
        model=make_model(settings, coder),
        batches=batches,
        loss=lambda model, batch: _loss(settings, model, batch),
        validate=lambda model: figures_of(model, valid, words.valid, coder=coder),
        score="words",
        is_better="more",
        config=settings.training,
        kept={"coder": coder.to_json()},
    )


def make_model(settings: HardAttentionSettings, coder: CharacterCoder) -> OnlineTranslator:
    """The untrained model."""
    n = len(coder)
    return OnlineTranslator(
        n_source=n, n_target=n, d_embed=settings.d_embed, d_hidden=settings.d_hidden
    )


def coder_of(kept: Mapping[str, Any]) -> CharacterCoder:
    """The letters that a run knows."""
    coder = coder_from_json(kept["coder"], "the run's alphabet")
    assert isinstance(coder, CharacterCoder), f"no letters but {type(coder).__name__}"
    return coder


def figures_of(
    model: Any, heard: Sequence[Drawled], words: Sequence[str], *, coder: CharacterCoder
) -> dict[str, float]:
    """How many words are written down right, how many letters, and when.

    ``guessed`` is the share of letters, of words that are right, that were written before they
    could be heard; ``delay`` is how many frames after its first one a letter was written.
    """
    source = encode_sources([word.frames for word in heard], coder)
    found = greedy(model, source, max_length=source.ids.shape[1])
    written = [coder.decode(each.ids) for each in found]
    delays = [
        place - onset
        for each, text, word, right in zip(found, written, heard, words, strict=True)
        if text == right and each.weights is not None
        # The end symbol, written last, has no onset.
        for place, onset in zip(each.weights.argmax(-1).tolist(), word.onsets, strict=False)
    ]
    n = max(1, len(delays))
    return {
        "words": 100 * exact_match(written, words).rate,
        "letters": 100 * character_accuracy(written, words).rate,
        "guessed": 100 * sum(delay < 0 for delay in delays) / n,
        "delay": sum(delays) / n,
    }


def evaluate_drawling(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Figures on words that were in no other part."""
    words = _words(data).test
    heard = _said(run.settings, words, seed=TEST_SEED)
    return figures_of(run.model, heard, words, coder=coder_of(run.kept))


def trace_of(run: OpenRun, frames: str) -> list[Trace]:
    """At which frame each letter was written."""
    coder = coder_of(run.kept)
    source = encode_sources([frames.strip()], coder)
    (found,) = greedy(_model(run), source, max_length=source.ids.shape[1])
    assert found.weights is not None, "hard attention tells its weights"
    return [
        Trace(
            kind="attention",
            steps=tuple(coder.labels([*found.ids, EOS])[: len(found.weights)]),
            memory=tuple(coder.labels(source.ids[0].tolist())),
            weights=found.weights,
            title=coder.decode(found.ids),
            meta={"log_prob": found.log_prob},
        )
    ]


def write_down(run: OpenRun, texts: Sequence[str], options: TranslateOptions) -> list[Translated]:
    """The word in the frames of each text."""
    coder = coder_of(run.kept)
    found = beam(
        _model(run),
        encode_sources([text.strip() for text in texts], coder),
        size=options.beam,
        max_length=options.max_length,
        length_penalty=options.length_penalty,
    ).best
    return [Translated(coder.decode(each.ids), each.log_prob) for each in found]


def _words(data: Path | None) -> WordSplits:
    return split_vocabulary(read_multi30k(data).train.target)


def _said(
    settings: HardAttentionSettings, words: Sequence[str], *, seed: int, epoch: int = 0
) -> list[Drawled]:
    hold, noise = settings.longest_hold, settings.noise
    return drawl(words, longest_hold=hold, noise=noise, seed=seed, epoch=epoch)


def _model(run: OpenRun) -> OnlineTranslator:
    model = run.model
    assert isinstance(model, OnlineTranslator), f"no online model but {type(model).__name__}"
    return model


def _loss(settings: HardAttentionSettings, model: nn.Module, batch: PairBatch) -> LossOut:
    assert isinstance(model, OnlineTranslator), f"no online model but {type(model).__name__}"
    found = model.loss(
        batch,
        n_samples=settings.n_samples,
        entropy_weight=settings.entropy_weight,
        reward_weight=settings.reward_weight,
    )
    logged = {"nats": -found.bound, "entropy": found.reinforced.entropy.detach()}
    return LossOut(found.loss, len(batch.source), logged)
