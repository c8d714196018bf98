"""Training, judging and watching readers of cloze questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import RecipeError, UsageError
from saccade.trace.trace import Trace
from saccade.zoo.models.attentive_reader import AttentiveReader, ImpatientReader
from saccade.zoo.models.deep_lstm_reader import ClozeBaseline, DeepLstmReader
from saccade.zoo.objectives.likelihood import cloze_loss
from saccade.zoo.recipes.opened import OpenRun
from saccade.zoo.tasks.cloze import (
    GAP_WORD,
    LABEL_WORD,
    Cloze,
    ClozeBatch,
    ClozeQuestion,
    ClozeSplits,
    question_of_text,
    read_books,
    read_question_file,
)
from saccade.zoo.tasks.cloze import cloze_vocabulary as vocabulary_of
from saccade.zoo.tasks.vocabulary import Vocabulary
from saccade.zoo.training.job import Job, LossOut

if TYPE_CHECKING:
    from saccade.zoo.recipes.reader_books import ReaderSettings

TOGETHER = 40_000  # words of documents that are judged at once


def reader_job(settings: ReaderSettings, splits: ClozeSplits) -> Job:
    """A reader, or a rule, on questions; the valid book says which weights are best."""
    vocabulary = vocabulary_of(splits.train, n_labels=settings.n_labels, max_size=settings.n_words)
    short = [each for each in splits.train if len(each.document) <= settings.longest]
    train = Cloze.encode(short, vocabulary, n_labels=settings.n_labels)
    valid = Cloze.encode(splits.valid, vocabulary, n_labels=settings.n_labels)
    seed = settings.training.seed

    def loss(model: nn.Module, batch: ClozeBatch) -> LossOut:
        return LossOut(
            cloze_loss(model(batch), batch.answers, batch.candidates), n=len(batch.answers)
        )

    return Job(
        model=reader_model(settings, d_vocab=len(vocabulary)),
        batches=lambda epoch: train.batches(tokens=settings.tokens, seed=seed, epoch=epoch),
        loss=loss,
        validate=lambda model: figures_of(model, valid),
        score="accuracy",
        is_better="more",
        config=settings.training,
        kept={"words": list(vocabulary.words)},
    )


def reader_model(settings: ReaderSettings, *, d_vocab: int) -> nn.Module:
    """The untrained reader, or a rule."""
    match settings.reader:
        case "attentive" | "impatient":
            made = AttentiveReader if settings.reader == "attentive" else ImpatientReader
            return made(
                d_vocab=d_vocab,
                n_labels=settings.n_labels,
                d_embed=settings.d_embed,
                d_hidden=settings.d_hidden,
                score=settings.score,
                asks_from=settings.asks_from,
                looks_at=settings.looks_at,
                dropout=settings.dropout,
            )
        case "deep-lstm":
            return DeepLstmReader(
                d_vocab=d_vocab,
                n_labels=settings.n_labels,
                d_embed=settings.d_embed,
                d_hidden=settings.d_hidden,
                dropout=settings.dropout,
            )
        case "max-frequency" | "exclusive-frequency" | "nearest":
            return ClozeBaseline(settings.reader, n_labels=settings.n_labels)


def right_of(model: nn.Module, questions: Cloze) -> Float[Tensor, " row"]:
    """1 for each question that is answered right, else 0."""
    right = torch.zeros(len(questions))
    for batch in questions.in_order(tokens=TOGETHER):
        logits = model(batch).masked_fill(~batch.candidates, -torch.inf)
        right[batch.rows] = (logits.argmax(-1) == batch.answers).float()
    return right


def figures_of(model: nn.Module, questions: Cloze) -> dict[str, float]:
    """Per cent of questions that are answered right."""
    return {"accuracy": 100 * right_of(model, questions).mean().item()}


def evaluate_reader(run: OpenRun, questions: Sequence[ClozeQuestion]) -> dict[str, float]:
    """``accuracy``: per cent of all questions answered right; and that of each book."""
    right = right_of(run.model, encode(run, questions)).tolist()
    by_source: dict[str, list[float]] = defaultdict(list)
    for each, is_right in zip(questions, right, strict=True):
        by_source[each.source].append(is_right)
    figures = {name: 100 * sum(found) / len(found) for name, found in by_source.items()}
    return {"accuracy": 100 * sum(right) / len(right), **figures}


def trace_reader(run: OpenRun, text: str) -> list[Trace]:
    """Where a reader looks in a document before it answers.

    Args:
        text: The number of a test question, a ``.question`` file, or sentences of which the last
            has the gap.
    """
    asked = question_of(text)
    (batch,) = encode(run, [asked]).in_order(tokens=TOGETHER)
    logits, weights = _answered(run.model, batch)
    probs = logits.masked_fill(~batch.candidates, -torch.inf)[0].softmax(-1)
    best = int(probs.argmax())
    said = f"{asked.names[best]} {probs[best]:.0%}"
    words = tuple(named(asked.question, asked.names))
    title = " ".join("____" if word == GAP_WORD else word for word in words)
    known = "" if asked.answer is None else f" ({asked.names[asked.answer]})"
    return [
        Trace(
            kind="document",
            steps=(said,) if weights.shape[1] == 1 else words,
            memory=tuple(named(asked.document, asked.names)),
            weights=weights[0],
            title=f"{title}  {said}{known}",
            meta={
                "candidates": {
                    asked.names[each]: round(probs[each].item(), 4) for each in asked.candidates
                },
                "answer": None if asked.answer is None else asked.names[asked.answer],
            },
        )
    ]


def question_of(text: str) -> ClozeQuestion:
    """The question that a user means."""
    text = text.strip()
    if text.isdigit():
        test = read_books("test")
        if int(text) >= len(test):
            raise UsageError(
                f"expected the number of a test question, 0 to {len(test) - 1}, got {text}",
                hint="for example 0",
            )
        return test[int(text)]
    if text.endswith(".question"):
        return read_question_file(Path(text))
    return question_of_text(text)


def unknown_words(run: OpenRun, text: str) -> list[str]:
    """Words of a question that the run reads as ``<unk>``."""
    asked, known = question_of(text), frozenset(run.kept["words"])
    return [word for word in (*asked.document, *asked.question) if word not in known]


def named(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Words with names in place of labels, for people to read."""
    place = {f"{LABEL_WORD}{number}": name for number, name in enumerate(names)}
    return [place.get(word, word) for word in words]


def encode(run: OpenRun, questions: Sequence[ClozeQuestion]) -> Cloze:
    """Questions as the run has learnt to read them."""
    return Cloze.encode(
        questions, Vocabulary(tuple(run.kept["words"])), n_labels=run.settings.n_labels
    )


def _answered(
    model: nn.Module, batch: ClozeBatch
) -> tuple[Float[Tensor, "batch label"], Float[Tensor, "batch step pos"]]:
    match model:
        case AttentiveReader():
            return model.read(batch)
        case DeepLstmReader():
            return model(batch), model.influence_on_answer(batch)
        case ClozeBaseline():
            return model(batch), model.looks(batch)
        case _:
            raise RecipeError(f"{type(model).__name__} is no reader", hint="open a reader's run")
