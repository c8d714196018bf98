"""Which name fills the gap? Readers with and without attention on questions made from books."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from saccade.zoo.recipes.recipe import Later, Recipe
from saccade.zoo.training.config import BelowOne, Many, TrainConfig, Width

if TYPE_CHECKING:
    from torch import nn

    from saccade.zoo.recipes.opened import OpenRun
    from saccade.zoo.training.job import Job

# Ten times through the questions, at 740 batches each time.
TRAINING = TrainConfig(steps=7400, minutes=45.0, learning_rate=0.003, clip=5.0, schedule="linear")
# The impatient reader looks some thirty times in a row, at chance after 500 steps of that rate; the
# deep LSTM carries what it reads for hundreds of words.
TRAINING_SLOW = replace(TRAINING, learning_rate=0.001, clip=1.0)
Reader = Literal[
    "attentive", "impatient", "deep-lstm", "max-frequency", "exclusive-frequency", "nearest"
]


@dataclass(frozen=True, kw_only=True)
class ReaderSettings:
    """Which reader, how large, and what it is asked."""

    reader: Reader
    """attentive, impatient, deep-lstm; or a rule: max-frequency, exclusive-frequency, nearest."""
    d_embed: Width = 64
    """Numbers a word."""
    d_hidden: Width = 64
    """Units of a reading in one direction."""
    score: str = "bilinear"
    """How the question is compared with a place of the document; additive is the paper's."""
    asks_from: Literal["gap", "ends"] = "gap"
    """What stands for the question: its reading at the gap, or at both ends as in the paper."""
    looks_at: Literal["names", "words"] = "names"
    """What can be looked at in the document: its names, or all of its words as in the paper."""
    dropout: BelowOne = 0.3
    """On words, readings and the answer."""
    n_words: Many = 8000
    """How many different words, the commonest; all others are one word, <unk>."""
    n_labels: Many = 48
    """How many labels names are given; no document has more names."""
    tokens: Many = 12_000
    """Words in the documents of a batch, padding included."""
    longest: Many = 1000
    """Documents that are longer are not learnt from; they are asked about all the same."""
    training: TrainConfig = TRAINING
    """How it is trained."""


def build(settings: ReaderSettings, data: Path | None) -> Job:
    """The job."""
    from saccade.zoo.recipes.reading_books import reader_job
    from saccade.zoo.tasks.cloze import read_book_cloze

    return reader_job(settings, read_book_cloze(data))


def restore(settings: ReaderSettings, kept: Mapping[str, Any]) -> nn.Module:
    """The untrained reader."""
    from saccade.zoo.recipes.reading_books import reader_model

    return reader_model(settings, d_vocab=len(kept["words"]))


def evaluate(run: OpenRun, data: Path | None) -> Mapping[str, float]:
    """Per cent of gaps filled right, in books that were not learnt from."""
    from saccade.zoo.recipes.reading_books import evaluate_reader
    from saccade.zoo.tasks.cloze import read_books

    return evaluate_reader(run, read_books("test", data))


HERMANN = "https://arxiv.org/abs/1506.03340, table 5, CNN test"
OTHER_TEXT = (
    "Theirs is CNN news with 380,000 questions, ours 15,000 questions from seven books, asked about"
    " two others."
)
STORY = (
    "There was Mr. Harding at the gate, and his sister Ellen stood beside him. A letter had come"
    " for Captain Rook. It was old Tom who brought it from the village. The sea was rough, and"
    " Ellen was afraid of it. Her brother laughed, but Captain Rook did not. He broke the seal and"
    " read, while Tom held the horse. 'I must sail to-night,' said Captain Rook. It came from"
    " the king. When he had folded it again, Captain @placeholder shook hands with Mr. Harding."
)
"""Written for the gallery: no line of a book is shown there."""
AT_LEAST = 35.2  # eight points more than the name that occurs most, which fills 27.2 % of the gaps
RULES = ("max-frequency", "exclusive-frequency", "nearest")


def _recipe(
    settings: ReaderSettings,
    *,
    about: str,
    published: float | None = None,
    at_least: float | None = None,
    minutes: float = 0.5,
) -> Recipe:
    is_rule = settings.reader in RULES
    return Recipe(
        name=f"reader-books-{settings.reader}",
        about=about,
        system="cloze_baselines" if is_rule else f"{settings.reader.replace('-', '_')}_reader",
        task="book_cloze",
        metric="accuracy",
        at_least=at_least,
        published=published,
        source="" if published is None else HERMANN,
        note=OTHER_TEXT,
        minutes=minutes,
        settings=replace(settings, training=TrainConfig()) if is_rule else settings,
        build=build,
        restore=restore,
        evaluate=evaluate,
        trace=Later("reading_books.trace_reader"),
        unknown_words=Later("reading_books.unknown_words"),
        gallery=() if is_rule else (STORY,),
    )


RECIPES = (
    _recipe(
        ReaderSettings(reader="attentive"),
        about="Finds the name that fills a gap: a question attends to 20 sentences of a book.",
        published=63.0,
        at_least=AT_LEAST,
        minutes=20.0,
    ),
    _recipe(
        ReaderSettings(reader="impatient", training=TRAINING_SLOW),
        about="Finds the name that fills a gap: each word of the question looks at the document.",
        published=63.8,
        at_least=AT_LEAST,
        minutes=30.0,
    ),
    _recipe(
        ReaderSettings(reader="deep-lstm", training=TRAINING_SLOW),
        about="The control: a deep LSTM carries 20 sentences to the gap without attention.",
        published=57.0,
        minutes=20.0,
    ),
    _recipe(
        ReaderSettings(reader="max-frequency"),
        about="The rule to beat: the name that the document has most.",
        published=33.2,
    ),
    _recipe(
        ReaderSettings(reader="exclusive-frequency"),
        about="A better rule: the name that the document has most and the question has not.",
        published=39.3,
    ),
    _recipe(
        ReaderSettings(reader="nearest"),
        about="A hasty rule: the name that stood last before the gap.",
    ),
)
