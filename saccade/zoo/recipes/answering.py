"""Training, judging and watching systems that answer questions about stories."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.attention.masks import masked_log_softmax
from saccade.zoo.models.best_of import BestOf
from saccade.zoo.models.memnn import MemNN
from saccade.zoo.objectives.likelihood import margin_ranking
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.recipes.stories import At, LossOf, MakeModel, StorySettings
from saccade.zoo.tasks.babi import (
    Question,
    Stories,
    StoryBatch,
    read_babi,
    story_vocabulary,
    words_of,
)
from saccade.zoo.tasks.vocabulary import Vocabulary
from saccade.zoo.training.job import Job, LossOut

TOGETHER = 500  # questions that are answered at once when scoring
FAILED = 5.0  # per cent of wrong answers from which on a task counts as failed: Weston et al., 2015


def story_job(
    settings: StorySettings,
    data: Path | None,
    *,
    make_model: MakeModel,
    loss_of: LossOf,
    at: At | None = None,
) -> Job:
    """All tasks together, in batches that hold some of each."""
    if settings.n_repeats < 1:
        raise UsageError(
            f"n_repeats: expected 1 or more, got {settings.n_repeats}",
            hint="with 1 the slow tasks come as often as the others",
        )
    splits = read_babi(settings.size, data, tasks=settings.tasks)
    vocabulary = story_vocabulary([*splits.train, *splits.valid, *splits.test])
    slow = [question for question in splits.train if question.task in settings.slow_tasks]
    train, valid = (
        Stories.of(part, vocabulary, most=settings.n_facts)
        for part in ([*splits.train, *slow * (settings.n_repeats - 1)], splits.valid)
    )
    seed, n_steps = settings.training.seed, _n_steps(settings, len(train))

    def before_step(model: nn.Module, step: int) -> None:
        if at is not None:
            at(settings, model, step / n_steps)

    return Job(
        model=make_model(settings, len(vocabulary)),
        batches=lambda epoch: train.batches(
            settings.batch, seed=seed, epoch=epoch, is_bucketed=settings.is_bucketed
        ),
        loss=lambda model, batch: loss_of(settings, model, batch),
        validate=lambda model: mean_error(errors_by_task(model, valid)),
        score="error",
        is_better="less",
        config=settings.training,
        kept={"words": list(vocabulary.words)},
        before_step=before_step,
    )


def _n_steps(settings: StorySettings, n_questions: int) -> int:
    """How many steps the training will have, if no clock ends it."""
    config = settings.training
    by_epochs = config.epochs * math.ceil(n_questions / settings.batch)
    return min((n for n in (config.steps, by_epochs) if n), default=1)


def answer_loss(model: nn.Module, batch: StoryBatch) -> LossOut:
    """Cross-entropy of the right words: all that systems without supporting facts are told.

    Models that are tried side by side are trained all, and the best so far is logged.
    """
    tries = model.models if isinstance(model, BestOf) else [model]
    nats = [functional.cross_entropy(each(batch).logits, batch.answer) for each in tries]
    losses = torch.stack(nats)
    if isinstance(model, BestOf):
        model.note(losses)
    return LossOut(losses.sum(), n=len(batch.answer), logged={"best": losses.min().detach()})


def supported_loss(model: nn.Module, batch: StoryBatch, *, margin: float = 0.0) -> LossOut:
    """Of finding the right next fact each time, and then of the right word.

    Both are learnt after the right facts, whatever the model would have found by itself.

    Args:
        margin: by how much the right one must lead (`margin_ranking`); 0: likelihood instead.
    """
    assert isinstance(model, MemNN), f"no MemNN but {type(model).__name__}"
    told = model.read(batch)
    found = batch.support.where(batch.support_mask, -1)[:, : model.max_steps]
    n_found = (found >= 0).sum(1, keepdim=True)
    ranked = model.rank(told, found)
    steps = torch.arange(ranked.scores.shape[1], device=found.device)
    # After the last of the facts comes the last of the candidates: that none is missing.
    right = functional.pad(found, (0, 1)).where(steps < n_found, ranked.scores.shape[2] - 1)
    each = _ranking(ranked.scores, right, mask=ranked.mask, margin=margin)  # [batch, step]
    finding = (each * (steps <= n_found)).sum(1).mean()
    answering = _ranking(model.answer(told, found), batch.answer, margin=margin).mean()
    logged = {"finding": finding.detach(), "answering": answering.detach()}
    return LossOut(finding + answering, n=len(batch.answer), logged=logged)


def _ranking(scores: Tensor, right: Tensor, *, margin: float, mask: Tensor | None = None) -> Tensor:
    if margin > 0:
        return margin_ranking(scores, right, mask, margin=margin)
    shown = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask
    log_probs = masked_log_softmax(scores, shown)
    return -log_probs.gather(-1, right[..., None])[..., 0]


def errors_by_task(model: nn.Module, stories: Stories) -> dict[int, float]:
    """Per cent of wrong answers in each task."""
    n_wrong, n = torch.zeros(2, int(stories.tasks.max()) + 1)
    for batch in stories.in_order(TOGETHER):
        wrong = model(batch).logits.argmax(-1) != batch.answer
        n_wrong.index_add_(0, batch.task, wrong.float())
        n.index_add_(0, batch.task, torch.ones(len(wrong)))
    return {task: 100 * (n_wrong[task] / n[task]).item() for task in n.nonzero().flatten().tolist()}


def mean_error(errors: Mapping[int, float]) -> dict[str, float]:
    """The mean over tasks, how many of them failed, and each."""
    each = {f"task {task}": error for task, error in errors.items()}
    failed = sum(error > FAILED for error in errors.values())
    return {"error": sum(errors.values()) / len(errors), "failed": float(failed), **each}


def evaluate_stories(run: OpenRun, data: Path | None) -> dict[str, float]:
    """Per cent of wrong answers to the test questions: the mean over tasks, and each of them."""
    settings = run.settings
    test = read_babi(settings.size, data, tasks=settings.tasks).test
    stories = Stories.of(test, vocabulary_of(run.kept), most=settings.n_facts)
    return mean_error(errors_by_task(run.model, stories))


def vocabulary_of(kept: Mapping[str, Any]) -> Vocabulary:
    """The words that a run knows."""
    return Vocabulary(tuple(kept["words"]))


def trace_story(run: OpenRun, text: str, *, step: str) -> Trace:
    """Which facts each look at a story of the user's reads.

    Args:
        step: what a look is called, such as ``hop``.
    """
    words = vocabulary_of(run.kept)
    asked = question_from(text, words)
    stories = Stories.of([asked], words, most=run.settings.n_facts)
    batch = stories.batch(torch.zeros(1, dtype=torch.long))
    with torch.no_grad():
        answered = run.model(batch)
    sure = answered.logits[0].softmax(-1).max(-1)
    answer = words.words[int(sure.indices)]
    weights: Tensor = answered.weights[0]
    facts = asked.facts[-weights.shape[1] :]
    return Trace(
        kind="hops",
        steps=tuple(f"{step} {number}" for number in range(1, len(weights) + 1)),
        memory=tuple(" ".join(fact) for fact in facts),
        weights=weights,
        title=f"{' '.join(asked.words)}? {answer}",
        meta={"answer": answer, "probability": sure.values.item()},
    )


def question_from(text: str, known: Vocabulary) -> Question:
    """A story in plain sentences whose last one is the question.

    >>> words = Vocabulary.build([["mary", "is", "here", "where"]])
    >>> question_from("Mary is here. Where is Mary?", words).words
    ('where', 'is', 'mary')
    """
    sentences = [part for part in re.findall(r"[^.?!\n]+[.?!]?", text) if words_of(part)]
    if not sentences or not sentences[-1].rstrip().endswith("?"):
        raise UsageError(
            f"the story ends without a question: {text[-60:]!r}",
            hint="end it with one, such as: Mary went to the kitchen. Where is Mary?",
        )
    if len(sentences) == 1:
        raise UsageError(
            f"there is a question but no story: {text!r}",
            hint="tell something first, such as: Mary went to the kitchen. Where is Mary?",
        )
    *facts, asked = (words_of(sentence) for sentence in sentences)
    _refuse_unknown([*facts, asked], known)
    return Question(task=0, facts=tuple(facts), words=asked, answer="", support=())


def _refuse_unknown(sentences: Sequence[Sequence[str]], known: Vocabulary) -> None:
    new = dict.fromkeys(word for each in sentences for word in each if word not in known)
    if new:
        some = ", ".join(word for word in known.words[4:] if "," not in word)
        raise UsageError(
            f"the system has never met {', '.join(new)}",
            hint=f"it knows the words of bAbI: {some[:200]} ...",
        )
