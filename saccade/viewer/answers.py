"""The shapes of answers, for the schema; the answers themselves are written once, as bytes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Any answer: what is not listed here is not in it."""

    model_config = ConfigDict(extra="forbid")


class Problem(Answer):
    """An error in the words of the command line."""

    error: str
    hint: str


class Word(Answer):
    """A word of the vocabulary and its figure."""

    id: int
    text: str
    value: float


class NamedWord(Answer):
    """A word without a figure."""

    id: int
    text: str


class Source(Answer):
    """A position that a head attends to."""

    position: int
    text: str
    weight: float


class Row(Answer):
    """One figure for each head of a layer."""

    layer: int
    values: list[float | None]


class LayerSize(Answer):
    """How many heads a layer has."""

    layer: int
    n_heads: int


class AboutModel(Answer):
    """A model in numbers."""

    name: str
    layers: list[LayerSize]
    n_heads: int
    d_vocab: int
    max_tokens: int


class Step(Answer):
    """How far a job is."""

    what: str
    done: int
    total: int


class Status(Answer):
    """What the page shows while it waits."""

    version: str
    state: Literal["opening", "ready", "failed", "none"]
    model: AboutModel | None
    lenses: list[str]
    residual_lenses: list[str]
    opening: Step | None
    job: Step | None
    waiting: int
    problem: Problem | None
    word_lists: list[str]
    roles: list[str]
    examples: list[str]


class HeadReading(Answer):
    """What one head says."""

    layer: int
    head: int | None
    says: float
    contributes: float | None
    quality: dict[str, float]
    predicts: list[Word]
    adds: list[Word]
    suppresses: list[Word]
    unembedded: list[Word]
    attends: list[Source]


class Reading(Answer):
    """What every head says."""

    model: str
    text: str
    tokens: list[str]
    position: int
    prediction: list[Word]
    heads: list[HeadReading]
    lens: str


class Prediction(Answer):
    """The model's own prediction at one position."""

    position: int
    top: list[Word]
    surprise: float | None
    entropy: float


class Predictions(Answer):
    """The model's own predictions."""

    text: str
    tokens: list[str]
    positions: list[Prediction]


class HeadMap(Answer):
    """One figure of each head."""

    measure: str
    label: str
    unit: str
    is_two_way: bool
    word: Word | None
    against: Word | None
    rows: list[Row]


class SeenThrough(Answer):
    """A head through one lens."""

    name: str
    kind: str
    method: str
    says: float | None
    quality: dict[str, float]
    explained: float | None
    fidelity: float | None
    is_weak: bool
    predicts: list[Word]
    adds: list[Word]
    suppresses: list[Word]


class HeadCard(Answer):
    """A head through every lens."""

    layer: int
    head: int
    position: int
    tokens: list[str]
    word: Word
    contributes: float | None
    lenses: list[SeenThrough]
    attention: list[float] | None
    entropy: float | None


class Attention(Answer):
    """Where a head looks."""

    layer: int
    head: int
    tokens: list[str]
    weights: list[list[float]]


class Roles(Answer):
    """What each head is there for."""

    model: str
    seed: int
    heads: list[dict[str, float | None]]


class Cells(Answer):
    """A row of a grid."""

    ids: list[list[int]]
    values: list[list[float]]
    entropy: list[float]


class Positions(Answer):
    """What each layer says at each position."""

    site: Literal["residual", "head"]
    head: int | None
    lens: str
    tokens: list[str]
    first: int
    layers: list[int]
    words: dict[str, str]
    ids: list[list[list[int]]]
    values: list[list[list[float]]]
    entropy: list[list[float]]
    final: Cells


class Standing(Answer):
    """Where a word stands in the model's own output."""

    ranks: list[int]
    values: list[float]


class RankedWord(Answer):
    """Where a word stands at each layer and position."""

    id: int
    text: str
    ranks: list[list[int]]
    values: list[list[float]]
    final: Standing


class Ranks(Answer):
    """Where words stand."""

    site: Literal["residual", "head"]
    head: int | None
    lens: str
    first: int
    layers: list[int]
    words: list[RankedWord]


class Side(Answer):
    """One of two prompts."""

    text: str
    tokens: list[str]
    position: int
    prediction: list[Word]
    score: float
    probability: float
    against_probability: float | None


class ComparedHead(Answer):
    """A head in two prompts."""

    layer: int
    head: int | None
    says: list[float]
    direct: list[float] | None
    difference: float | None
    adds: list[list[Word]]


class Compared(Answer):
    """Two prompts side by side."""

    word: NamedWord
    against: NamedWord | None
    left: Side
    right: Side
    heads: list[ComparedHead]
    lens: str


class FollowedWord(NamedWord):
    """A word before and after a change."""

    before: float
    after: float
    rank_before: int
    rank_after: int


class MovedWord(NamedWord):
    """A word that moved, beside what the lens foretold."""

    before: float
    after: float
    actual: float
    predicted: float | None


class Acted(Answer):
    """A model before and after changes."""

    text: str
    tokens: list[str]
    position: int
    before: list[Word]
    after: list[Word]
    word: FollowedWord
    kl: float
    moved: list[MovedWord]
    agreement: float | None
    changes: list[str]
    says: str
    says_after: str
    lens: str | None


class LensMap(Answer):
    """How good the lenses are by one measure."""

    measure: str
    label: str
    is_two_way: bool
    mean: float | None
    rows: list[Row]


class AboutLenses(Answer):
    """What lenses were made from, and how good they are."""

    name: str
    kind: str
    site: str
    method: str
    objective: str
    corpus: str
    n_tokens: int
    seed: int
    settings: dict[str, Any]
    versions: dict[str, str]
    model_fingerprint: str
    measures: list[LensMap]


class Run(BaseModel):
    """A run; a damaged one has its name, state and note only."""

    name: str
    state: Literal["done", "running", "damaged"]
    note: str


class AnyTrace(BaseModel):
    """Where attention went; over an image it has other parts (see the README)."""

    kind: str
    title: str
    steps: list[str]
    meta: dict[str, Any]


class SavedTrace(Answer):
    """A trace on disk, in short."""

    name: str
    kind: str
    title: str
    n_steps: int
