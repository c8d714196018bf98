"""N-best translations of one system, reranked by another.

Sutskever et al., 2014 (https://arxiv.org/abs/1409.3215), section 3.2, and before them Kalchbrenner
and Blunsom, 2013: a second score for the n-best list of a translator, averaged with its own. The
two may have different vocabularies: they exchange text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from saccade.errors import RecipeError
from saccade.zoo.decoding.beam import beam, length_norm
from saccade.zoo.decoding.ensemble import Ensemble, rescore
from saccade.zoo.decoding.stepper import Hypothesis, Stepper
from saccade.zoo.metrics.translation_metrics import bleu
from saccade.zoo.objectives.likelihood import sequence_log_probs
from saccade.zoo.recipes.recipe import RescoreOptions
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.recipes.translation import Tokenizers
from saccade.zoo.tasks.multi30k import SentencePairs, read_multi30k
from saccade.zoo.tasks.pairs import PairBatch, Pairs
from saccade.zoo.tasks.vocabulary import Padded
from saccade.zoo.training.job import to_device_of

TOGETHER = 64  # sentences in a batch
TIMES, MORE = 2, 10  # the longest translation: twice as long as the source, and a little


class Rescored(NamedTuple):
    """A sentence's translation before and after rescoring."""

    before: str
    after: str


def rescore_translations(
    run: TrainedRun, by: TrainedRun, texts: Sequence[str], *, options: RescoreOptions
) -> list[Rescored]:
    """Translate with one run, and rescore its n-best list with another.

    Each hypothesis is ranked by ``(1 - weight) * score + weight * score of the second``, where a
    score is the log-probability over the length norm of beam search, each with its own tokens.
    """
    for each in (run, by):
        if not each.recipe.can_translate:
            raise RecipeError(
                f"{each.recipe.name} is no translator", hint="`saccade recipes` lists some"
            )
    tokenizers = Tokenizers.from_kept(run.settings, run.kept)
    found = _n_best(run, tokenizers.sources(texts), options.n_best)
    said = [[tokenizers.target.decode(one.ids) for one in group] for group in found]
    ranked = rescore(found, lambda _: _second_scores(by, texts, said), weight=options.weight)
    return [
        Rescored(old[0], tokenizers.target.decode(new[0].ids))
        for old, new in zip(said, ranked, strict=True)
    ]


def evaluate_rescoring(
    run: TrainedRun, by: TrainedRun, data: Path | None, *, options: RescoreOptions
) -> dict[str, float]:
    """BLEU on test_2016 before and after."""
    test = read_multi30k(data, source=run.settings.source, target=run.settings.target).test
    found = rescore_translations(run, by, test.source, options=options)
    return {
        "bleu_before": bleu([each.before for each in found], test.target).score,
        "bleu": bleu([each.after for each in found], test.target).score,
    }


def pair_log_probs(model: nn.Module, pairs: Pairs) -> Tensor:
    """``log p(target | source)`` of every pair by any translator, in the order of the pairs."""
    found = torch.empty(len(pairs))
    with torch.no_grad():
        for batch in pairs.in_order(tokens=4096):
            here: PairBatch = to_device_of(model, batch)
            log_probs = sequence_log_probs(model(here), here.target_out, here.target_mask)
            found[batch.rows] = log_probs.cpu()
    return found


def _second_scores(
    by: TrainedRun, texts: Sequence[str], said: Sequence[Sequence[str]]
) -> list[list[float]]:
    """The log-probability of each hypothesis by the second run; the mean of several models."""
    tokenizers = Tokenizers.from_kept(by.settings, by.kept)
    sources = [text for text, group in zip(texts, said, strict=True) for _ in group]
    pairs = tokenizers.pairs(SentencePairs(sources, [one for group in said for one in group]))
    log_prob = torch.stack([pair_log_probs(model, pairs) for model in by.models]).mean(0)
    n_tokens = pairs.target.lengths - 1  # BOS is not predicted
    scores = log_prob / length_norm(n_tokens, by.settings.length_penalty)
    sizes = [len(group) for group in said]
    return [part.tolist() for part in scores.split(sizes)]


def _n_best(run: TrainedRun, source: Padded, n_best: int) -> list[list[Hypothesis]]:
    steppers = [model for model in run.models if isinstance(model, Stepper)]
    stepper = steppers[0] if len(steppers) == 1 else Ensemble(steppers)
    lengths = source.mask.sum(1)
    found: dict[int, list[Hypothesis]] = {}
    for rows in lengths.argsort().split(TOGETHER):
        width = int(lengths[rows].max())
        part = Padded(source.ids[rows, :width], source.mask[rows, :width])
        result = beam(
            stepper,
            to_device_of(run.models[0], part),
            size=max(run.settings.beam, n_best),
            max_length=TIMES * lengths[rows] + MORE,
            length_penalty=run.settings.length_penalty,
            n_best=n_best,
        )
        found.update(zip(rows.tolist(), result.hypotheses, strict=True))
    return [found[row] for row in range(len(lengths))]
