"""Training, evaluating, using and watching any translator; `translation` says what one is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from saccade.trace.trace import Trace
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import Ensemble
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Hypothesis, Stepper
from saccade.zoo.metrics.sequence_metrics import bleu_by_length, perplexity
from saccade.zoo.metrics.translation_metrics import bleu, chrf, ter
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.recipes.coders import Coders
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.options import Translated, TranslateOptions
from saccade.zoo.recipes.translation import LossOf, MakeModel, TranslationSettings
from saccade.zoo.tasks.multi30k import SentencePairs, read_multi30k
from saccade.zoo.tasks.pairs import PairBatch, Pairs
from saccade.zoo.tasks.vocabulary import EOS, Padded
from saccade.zoo.training.job import Job, LossOut, moved

# Sentences that are searched at once. Sorted by length first, so that few wait for the longest.
TOGETHER = 128
# A translation may have twice as many tokens as its source, and a few more: on Multi30k none needs
# more, and a system that has not learnt to end yet does not take for ever.
TIMES, MORE = 2, 10


def translation_job(
    settings: TranslationSettings, data: Path | None, *, make_model: MakeModel, loss_of: LossOf
) -> Job:
    """Read Multi30k, learn the vocabulary, make the model."""
    splits = read_multi30k(data, source=settings.source, target=settings.target)
    coders = Coders.learn(settings, splits.train)
    pairs, valid = coders.pairs(splits.train), coders.pairs(splits.valid)
    some = SentencePairs(*(side[: settings.valid_sentences] for side in splits.valid))

    def validate(model: nn.Module) -> dict[str, float]:
        return _validate(model, valid, some, coders=coders)

    return Job(
        model=make_model(settings, len(coders.source), len(coders.target)),
        batches=lambda epoch: pairs.batches(
            tokens=settings.batch_tokens, seed=settings.training.seed, epoch=epoch
        ),
        loss=lambda model, batch: loss_of(settings, model, batch),
        validate=validate,
        score=settings.score,
        is_better="more" if settings.score == "bleu" else "less",
        config=settings.training,
        kept=coders.to_kept(),
    )


def token_loss_out(model: nn.Module, batch: PairBatch, *, smoothing: float) -> LossOut:
    """The loss of a translator, which gives logits for real target positions only."""
    found = token_loss(model(batch), batch.target_out[batch.target_mask], smoothing=smoothing)
    return LossOut(found.loss, found.n_tokens, {"nats": found.nll / found.n_tokens})


def pairs_perplexity(model: nn.Module, pairs: Pairs, *, tokens: int = 4096) -> float:
    """Perplexity of a token, of all targets given their sources."""
    nll, n_tokens, device = 0.0, 0, _device(model)
    for batch in pairs.in_order(tokens=tokens):
        here: PairBatch = moved(batch, device)
        found = token_loss(model(here), here.target_out[here.target_mask])
        nll, n_tokens = nll + found.nll.item(), n_tokens + found.n_tokens
    return perplexity(nll, n_tokens).perplexity


def evaluate_translator(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Scores on test_2016, on the text a reader would see; BLEU also by the source's length."""
    settings = run.settings
    test = read_multi30k(data, source=settings.source, target=settings.target).test
    coders = Coders.from_kept(settings, run.kept)
    options = search_options(settings)
    found = translate_texts(run.models, test.source, coders=coders, options=options)
    said = [each.text for each in found]
    scores = {
        "bleu": bleu(said, test.target).score,
        "chrf": chrf(said, test.target).score,
        "ter": ter(said, test.target).score,
    }
    if len(run.models) == 1:
        scores["perplexity"] = pairs_perplexity(run.model, coders.pairs(test))
    n_words = [len(text.split()) for text in test.source]
    for each in bleu_by_length(said, test.target, n_words):
        scores[f"bleu_of_{each.shortest}_to_{each.longest}_words"] = each.bleu
    return scores


def translate_texts(
    models: Sequence[nn.Module],
    texts: Sequence[str],
    *,
    coders: Coders,
    options: TranslateOptions,
) -> list[Translated]:
    """Translate sentences, with one model or the mean of several."""
    found = search(models, coders.sources(texts), options=options)
    return [Translated(coders.target.decode(each.ids), each.log_prob) for each in found]


def unknown_source_words(run: OpenRun, text: str) -> list[str]:
    """Words of a source sentence that the run reads as ``<unk>``."""
    coders = Coders.from_kept(run.settings, run.kept)
    return coders.source.unknown(coders.cased(text))


def search_options(settings: TranslationSettings) -> TranslateOptions:
    """How the recipe itself searches."""
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
        best = _search(stepper, moved(part, _device(models[0])), limit, options)
        found.update(zip(rows.tolist(), best, strict=True))
    return [found[row] for row in range(len(lengths))]


def trace_of(run: OpenRun, text: str) -> list[Trace]:
    """One trace: the tokens of the best translation against those of the source."""
    coders = Coders.from_kept(run.settings, run.kept)
    source = coders.sources([text])
    (best,) = search([run.model], source, options=search_options(run.settings))
    assert best.weights is not None, f"{run.recipe.name} tells no weights"
    memory, weights = coders.source.labels(source.ids[0].tolist()), best.weights
    if coders.is_reversed:  # as a reader has it; the end symbol was last all the time
        order = [*range(len(memory) - 2, -1, -1), len(memory) - 1]
        memory, weights = [memory[at] for at in order], weights[:, order]
    steps = coders.target.labels([*best.ids, EOS])[: len(weights)]
    return [
        Trace(
            kind="attention",
            steps=tuple(steps),
            memory=tuple(memory),
            weights=weights,
            title=coders.target.decode(best.ids),
            meta={"source": text, "log_prob": best.log_prob},
        )
    ]


def _validate(
    model: nn.Module, pairs: Pairs, sentences: SentencePairs, *, coders: Coders
) -> dict[str, float]:
    scores = {"perplexity": pairs_perplexity(model, pairs)}
    if sentences.source:
        options = TranslateOptions(beam=1)
        found = translate_texts([model], sentences.source, coders=coders, options=options)
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


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
