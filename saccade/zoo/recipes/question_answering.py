"""Shared by recipes on bAbI question answering: settings, training, metrics, traces.

The tasks and the rule that a task fails from 5 % of wrong answers on: Weston et al., 2015
(https://arxiv.org/abs/1502.05698). One model learns all tasks, in batches that hold some of each.
The recipes themselves are in `memory_networks.py`.
"""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le, MinLen
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.best_of import BestOf
from saccade.zoo.recipes.recipe import Recipe
from saccade.zoo.recipes.run import TrainedRun
from saccade.zoo.tasks.babi import (
    Question,
    Stories,
    StoryBatch,
    read_babi,
    story_vocabulary,
    words_of,
)
from saccade.zoo.tasks.vocabulary import Vocabulary
from saccade.zoo.training.job import Job, LossOut, to_device_of
from saccade.zoo.training.settings import Batch, Few, Many, TrainConfig

TOGETHER = 500  # questions in a batch, in evaluation
FAILED = 5.0  # per cent of wrong answers from which on a task counts as failed: Weston et al., 2015
Task = Annotated[int, Ge(1), Le(20)]
Tasks = Annotated[tuple[Task, ...], MinLen(1)]
TASKS = tuple(range(1, 21))
WITHOUT_3 = tuple(task for task in TASKS if task != 3)
"""The available archive has no 10,000 questions of task 3."""
WHERE_IS_IT = (
    "John took the football there. John went to the hallway. Mary went to the kitchen. "
    "John dropped the football. John moved to the garden. Where is the football?"
)
WHERE_IS_SHE = (
    "Mary moved to the garden. John went to the office. Mary travelled to the kitchen. "
    "Sandra went back to the garden. Where is Mary?"
)
GALLERY = (WHERE_IS_IT, WHERE_IS_SHE)
"""Stories like those of tasks 2 and 1, in their words."""


@dataclass(frozen=True, kw_only=True)
class StorySettings:
    """The settings of any system on bAbI; each recipe inherits from it."""

    size: Literal["1k", "10k"] = "1k"
    """1k or 10k questions to learn from in each task."""
    tasks: Tasks = TASKS
    """Which of the twenty tasks; all are learnt by one model."""
    slow_tasks: tuple[Task, ...] = ()
    """Tasks that are learnt slowly: their questions come `n_repeats` times in each epoch."""
    n_repeats: Few = 4
    """Repeats of questions of slow tasks in an epoch."""
    n_facts: Many = 50
    """How many facts are kept, the latest ones."""
    batch: Batch = 64
    """Questions in a batch."""
    is_bucketed: bool = False
    """Bucket questions by their number of facts; for systems that read fact by fact."""
    training: TrainConfig = field(default_factory=TrainConfig)
    """Training settings."""


@dataclass(frozen=True, kw_only=True)
class StoryRecipe(Recipe):
    """A system that answers questions about stories; the metric is the mean error over tasks.

    A family implements `make_model`; a loss of its own overrides `loss`, and a system that is
    trained in stages overrides `before_step`.
    """

    task: str = "babi"
    metric: str = "error"
    is_better: Literal["less", "more"] = "less"
    gallery: tuple[str, ...] = GALLERY
    step: str
    """The name of a step in traces, such as ``hop``."""

    @abstractmethod
    def make_model(self, settings: Any, n_words: int) -> nn.Module:
        """The untrained model."""

    def loss(self, settings: Any, model: nn.Module, batch: StoryBatch) -> LossOut:
        """The loss of a batch: the likelihood of the right answers."""
        del settings
        return answer_loss(model, batch)

    def before_step(self, settings: Any, model: nn.Module, way: float) -> None:
        """Called before each step; ``way`` is the completed fraction of the training."""

    def build(self, settings: StorySettings, data: Path | None) -> Job:
        """All tasks together, in batches that hold some of each."""
        if settings.n_repeats < 1:
            raise UsageError(
                f"n_repeats: expected 1 or more, got {settings.n_repeats}",
                hint="with 1, slow tasks come as often as the others",
            )
        splits = read_babi(settings.size, data, tasks=settings.tasks)
        vocabulary = story_vocabulary([*splits.train, *splits.valid, *splits.test])
        slow = [question for question in splits.train if question.task in settings.slow_tasks]
        train, valid = (
            Stories.of(part, vocabulary, most=settings.n_facts)
            for part in ([*splits.train, *slow * (settings.n_repeats - 1)], splits.valid)
        )
        seed, n_steps = settings.training.seed, _n_steps(settings, len(train))
        return Job(
            model=self.make_model(settings, len(vocabulary)),
            batches=lambda epoch: train.batches(
                settings.batch, seed=seed, epoch=epoch, is_bucketed=settings.is_bucketed
            ),
            loss=lambda model, batch: self.loss(settings, model, batch),
            validate=lambda model: mean_error(errors_by_task(model, valid)),
            score="error",
            is_better="less",
            config=settings.training,
            kept={"words": list(vocabulary.words)},
            before_step=lambda model, step: self.before_step(settings, model, step / n_steps),
        )

    def restore(self, settings: StorySettings, kept: Mapping[str, Any]) -> nn.Module:
        """The untrained model."""
        return self.make_model(settings, len(kept["words"]))

    def evaluate(self, run: TrainedRun, data: Path | None) -> dict[str, float]:
        """Per cent of wrong answers to the test questions: the mean over tasks, and each task."""
        settings = run.settings
        test = read_babi(settings.size, data, tasks=settings.tasks).test
        stories = Stories.of(test, _known_words(run), most=settings.n_facts)
        return mean_error(errors_by_task(run.model, stories))

    def trace(self, run: TrainedRun, text: str, *, data: Path | None = None) -> list[Trace]:
        """The facts that each hop reads in a user's story."""
        del data
        words = _known_words(run)
        asked = question_from(text, words)
        stories = Stories.of([asked], words, most=run.settings.n_facts)
        batch = stories.batch(torch.zeros(1, dtype=torch.long))
        with torch.no_grad():
            answered = run.model(to_device_of(run.model, batch))
        probability, best = answered.logits[0].softmax(-1).max(-1)
        answer = words.words[int(best)]
        weights: Tensor = answered.weights[0].cpu()
        facts = asked.facts[-weights.shape[1] :]
        return [
            Trace(
                kind="hops",
                steps=tuple(f"{self.step} {number}" for number in range(1, len(weights) + 1)),
                memory=tuple(" ".join(fact) for fact in facts),
                weights=weights,
                title=f"{' '.join(asked.words)}? {answer}",
                meta={"answer": answer, "probability": probability.item()},
            )
        ]


def answer_loss(model: nn.Module, batch: StoryBatch) -> LossOut:
    """Cross-entropy of the answers: the only supervision of systems without supporting facts.

    Models in parallel are all trained, and the best so far is logged.
    """
    tries = model.models if isinstance(model, BestOf) else [model]
    nats = [functional.cross_entropy(each(batch).logits, batch.answer) for each in tries]
    losses = torch.stack(nats)
    if isinstance(model, BestOf):
        model.note(losses)
    return LossOut(losses.sum(), n=len(batch.answer), logged={"best": losses.min().detach()})


def errors_by_task(model: nn.Module, stories: Stories) -> dict[int, float]:
    """Per cent of wrong answers in each task."""
    n_wrong, n = torch.zeros(2, int(stories.tasks.max()) + 1)
    for batch in stories.in_order(TOGETHER):
        answers = model(to_device_of(model, batch)).logits.argmax(-1).cpu()
        wrong = answers != batch.answer
        n_wrong.index_add_(0, batch.task, wrong.float())
        n.index_add_(0, batch.task, torch.ones(len(wrong)))
    return {task: 100 * (n_wrong[task] / n[task]).item() for task in n.nonzero().flatten().tolist()}


def mean_error(errors: Mapping[int, float]) -> dict[str, float]:
    """The mean over tasks, how many of them failed, and each."""
    each = {f"task {task}": error for task, error in errors.items()}
    failed = sum(error > FAILED for error in errors.values())
    return {"error": sum(errors.values()) / len(errors), "failed": float(failed), **each}


def question_from(text: str, known: Vocabulary) -> Question:
    """A story in sentences, of which the last is the question.

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
            hint="give a fact first, such as: Mary went to the kitchen. Where is Mary?",
        )
    *facts, asked = (words_of(sentence) for sentence in sentences)
    _refuse_unknown([*facts, asked], known)
    return Question(task=0, facts=tuple(facts), words=asked, answer="", support=())


def _refuse_unknown(sentences: Sequence[Sequence[str]], known: Vocabulary) -> None:
    new = dict.fromkeys(word for each in sentences for word in each if word not in known)
    if new:
        some = ", ".join(word for word in known.words[4:] if "," not in word)
        raise UsageError(
            f"the system does not know {', '.join(new)}",
            hint=f"it knows the words of bAbI: {some[:200]} ...",
        )


def _known_words(run: TrainedRun) -> Vocabulary:
    return Vocabulary(tuple(run.kept["words"]))


def _n_steps(settings: StorySettings, n_questions: int) -> int:
    """The number of steps of the training, if no time limit ends it."""
    config = settings.training
    by_epochs = config.epochs * math.ceil(n_questions / settings.batch)
    return min((n for n in (config.steps, by_epochs) if n), default=1)
