"""The shapes of answers, for the schema; the answers themselves are written once, as bytes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

# What can be asked, with its limits: everything that comes from a page is checked here.

MOST_TOKENS = 1024
MOST_CHARACTERS = 20_000
MOST_CHANGES = 16
MOST_SAVED = 1024

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MOST_CHARACTERS)]
WordText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Top: TypeAlias = Annotated[int, Field(ge=1, le=20)]
Place: TypeAlias = Annotated[int, Field(ge=-MOST_TOKENS, lt=MOST_TOKENS)]
Layer: TypeAlias = Annotated[int, Field(ge=0, lt=10_000)]
Number: TypeAlias = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]


class Question(BaseModel):
    """Any question: unknown keys are refused, so that a misspelt one is not passed over."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Change(Question):
    layer: Layer
    positions: Annotated[list[Place], Field(min_length=1, max_length=64)] | None = None


class AblateChange(_Change):
    """A head says nothing, what it says on average, or what it said at another place."""

    kind: Literal["ablate"]
    head: Layer
    by: Literal["zero", "mean", "resample"] = "zero"


class ScaleChange(_Change):
    """A head speaks louder, or lower."""

    kind: Literal["scale"]
    head: Layer
    factor: Number


class PatchChange(_Change):
    """A head says what it said in another prompt."""

    kind: Literal["patch"]
    head: Layer
    source: Text


class InjectChange(_Change):
    """A memory is added to what a head, or the residual stream after the layer, holds."""

    kind: Literal["inject"]
    head: Layer | None = None
    memory: WordText
    strength: Number = 1.0
    form: Literal["unembedding", "lens", "text"] = "unembedding"


AnyChange: TypeAlias = Annotated[
    AblateChange | ScaleChange | PatchChange | InjectChange, Field(discriminator="kind")
]
Changes: TypeAlias = Annotated[list[AnyChange], Field(max_length=MOST_CHANGES)]


class AboutText(Question):
    """A question about a text, read by the model as it is or with changes."""

    text: Text
    changes: Changes = []


class ReadingQuestion(AboutText):
    """What does every head say?"""

    position: Place = -1
    lens: Name | None = None
    top: Top = 10


class PredictionsQuestion(AboutText):
    """What does the model predict at each position?"""

    top: Top = 5


class MeasureQuestion(AboutText):
    """One figure of each head."""

    measure: Literal["says", "gain", "fidelity", "contributes", "effect", "mass", "entropy"]
    position: Place = -1
    lens: Name | None = None
    word: WordText | None = None
    against: WordText | None = None
    words: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    ablate: Literal["zero", "mean"] = "zero"


class HeadQuestion(AboutText):
    """What does one head say, through every lens?"""

    layer: Layer
    head: Layer
    position: Place = -1
    top: Top = 10


class AttentionQuestion(AboutText):
    """Where does one head look, from every position?"""

    layer: Layer
    head: Layer


class _Positions(AboutText):
    head: Layer | None = None
    lens: Name | None = None
    first: Annotated[int, Field(ge=0, lt=MOST_TOKENS)] = 0
    count: Annotated[int, Field(ge=1, le=64)] = 32


class PositionsQuestion(_Positions):
    """What does each layer say at each position?"""

    top: Top = 10


class RanksQuestion(_Positions):
    """Where do words stand at each layer and position?"""

    words: Annotated[list[WordText], Field(min_length=1, max_length=8)]


class CompareQuestion(AboutText):
    """What is different between two prompts?"""

    other: Text
    lens: Name | None = None
    word: WordText | None = None
    against: WordText | None = None
    top: Top = 5


class ActQuestion(Question):
    """What do changes do?"""

    text: Text
    changes: Annotated[list[AnyChange], Field(min_length=1, max_length=MOST_CHANGES)]
    lens: Name | None = None
    word: WordText | None = None
    top: Top = 10
    say: Annotated[int, Field(ge=0, le=40)] = 0


class TraceQuestion(Question):
    """Where does a trained system look while it works on an input?"""

    run: Name
    input: Annotated[str, StringConstraints(min_length=1, max_length=2000)]


class NoQuestion(Question):
    """For what is asked without saying anything."""


class Kept(Question):
    """A question whose answer goes into a saved page."""

    route: Name
    question: dict[str, Any] = {}


class SaveQuestion(Question):
    """A page that works offline."""

    state: dict[Name, Any] = {}
    questions: Annotated[list[Kept], Field(min_length=1, max_length=MOST_SAVED)]


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
