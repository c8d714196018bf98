"""What can be asked, with its limits: everything that comes from a page is checked here.

Answers have no models of their own: their shapes are those of the dataclasses that the methods in
`routes.py` give.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST_TOKENS = 1024
MOST_CHARACTERS = 20_000
MOST_CHANGES = 16
MOST_SAVED = 1024

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MOST_CHARACTERS)]
TokenText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=100)]
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
    memory: TokenText
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

    measure: Literal["lens", "gain", "fidelity", "direct", "effect", "mass", "entropy"]
    position: Place = -1
    lens: Name | None = None
    token: TokenText | None = None
    against: TokenText | None = None
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
    """Where do tokens stand at each layer and position?"""

    tokens: Annotated[list[TokenText], Field(min_length=1, max_length=8)]


class CompareQuestion(AboutText):
    """What is different between two prompts?"""

    other: Text
    lens: Name | None = None
    token: TokenText | None = None
    against: TokenText | None = None
    top: Top = 5


class ActQuestion(Question):
    """What do changes do?"""

    text: Text
    changes: Annotated[list[AnyChange], Field(min_length=1, max_length=MOST_CHANGES)]
    lens: Name | None = None
    token: TokenText | None = None
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
