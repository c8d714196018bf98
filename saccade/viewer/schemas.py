"""Questions and their limits: everything that a page sends is checked here.

Answers have no models of their own: their schemas come from the dataclasses that the methods in
`routes.py` return.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, StringConstraints

MOST_TOKENS = 1024
MOST_CHARACTERS = 20_000
MOST_CHANGES = 16
MOST_SAVED = 1024
MOST_WRITTEN = 64

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=MOST_CHARACTERS)]
TokenText: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=100)]
Name: TypeAlias = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Top: TypeAlias = Annotated[int, Field(ge=1, le=20)]
Position: TypeAlias = Annotated[int, Field(ge=-MOST_TOKENS, lt=MOST_TOKENS)]
Layer: TypeAlias = Annotated[int, Field(ge=0, lt=10_000)]
Number: TypeAlias = Annotated[float, Field(ge=-1000, le=1000, allow_inf_nan=False)]


class Question(BaseModel):
    """Any question. Unknown keys are refused, so that a misspelt one is not ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Change(Question):
    layer: Layer
    positions: Annotated[list[Position], Field(min_length=1, max_length=64)] | None = None


class AblateChange(_Change):
    """Replace a head's activation by zero, its mean, or one from a random position."""

    kind: Literal["ablate"]
    head: Layer
    by: Literal["zero", "mean", "resample"] = "zero"


class ScaleChange(_Change):
    """Multiply a head's activation by a factor."""

    kind: Literal["scale"]
    head: Layer
    factor: Number


class PatchChange(_Change):
    """Replace a head's activation by its activation in another prompt."""

    kind: Literal["patch"]
    head: Layer
    source: Text


class InjectChange(_Change):
    """Add a memory to the activation of a head, or to the residual stream after the layer."""

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
    """A question about a text, read by the unchanged model or by the model with changes."""

    text: Text
    changes: Changes = []


class ReadingQuestion(AboutText):
    """What all heads do and know at one position."""

    position: Position = -1
    lens: Name | None = None
    token: TokenText | None = None
    against: TokenText | None = None
    ablate: Literal["zero", "mean"] = "mean"
    top: Top = 10


class PredictionsQuestion(AboutText):
    """The predictions of the model at each position."""

    top: Top = 5


class MeasureQuestion(AboutText):
    """One value per head."""

    measure: Literal["effect", "token", "direct", "lens", "gain", "fidelity", "mass", "entropy"]
    position: Position = -1
    lens: Name | None = None
    token: TokenText | None = None
    against: TokenText | None = None
    words: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    ablate: Literal["zero", "mean"] = "mean"


class HeadQuestion(AboutText):
    """One head through every lens."""

    layer: Layer
    head: Layer
    position: Position = -1
    top: Top = 10


class AttentionQuestion(AboutText):
    """Attention weights of one head, from every position."""

    layer: Layer
    head: Layer


class _Positions(AboutText):
    head: Layer | None = None
    lens: Name | None = None
    first: Annotated[int, Field(ge=0, lt=MOST_TOKENS)] = 0
    count: Annotated[int, Field(ge=1, le=64)] = 32


class PositionsQuestion(_Positions):
    """The prediction of each layer at each position."""

    top: Top = 10


class RanksQuestion(_Positions):
    """Ranks of tokens at each layer and position."""

    tokens: Annotated[list[TokenText], Field(min_length=1, max_length=8)]


class AttributionQuestion(AboutText):
    """Every head at every position, and one prediction."""

    position: Position = -1
    token: TokenText | None = None
    against: TokenText | None = None
    ablate: Literal["zero", "mean"] = "mean"


class CellQuestion(AttributionQuestion):
    """One head at one position, and one prediction."""

    layer: Layer
    head: Layer
    at: Annotated[int, Field(ge=0, lt=MOST_TOKENS)]


class FlowQuestion(AttributionQuestion):
    """The graph of one prediction."""

    threshold: Annotated[float, Field(ge=0.02, le=1)] = 0.12


class GenerateQuestion(Question):
    """One token of the text that the unchanged model writes after a prompt."""

    text: Text
    index: Annotated[int, Field(ge=0, lt=MOST_WRITTEN)] = 0
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0


class CompareQuestion(AboutText):
    """Two prompts, compared."""

    other: Text
    lens: Name | None = None
    token: TokenText | None = None
    against: TokenText | None = None
    ablate: Literal["zero", "mean"] = "mean"
    top: Top = 5


class ActQuestion(Question):
    """The effect of changes."""

    text: Text
    changes: Annotated[list[AnyChange], Field(min_length=1, max_length=MOST_CHANGES)]
    lens: Name | None = None
    token: TokenText | None = None
    top: Top = 10
    say: Annotated[int, Field(ge=0, le=40)] = 0


class TraceQuestion(Question):
    """Traces of a trained system on an input: a number, a text, or the bytes of a file."""

    run: Name
    input: Annotated[str, StringConstraints(min_length=1, max_length=2000)]
    """With ``file``, its name; never a path."""
    file: Annotated[Base64Bytes, Field(min_length=1)] | None = None
    """An image, a sound or strokes, in base64."""


class FindQuestion(Question):
    """Which heads of an atlas are asked for: all conditions must hold."""

    token: TokenText | None = None
    suppressed: TokenText | None = None
    role: TokenText | None = None
    where: Annotated[list[TokenText], Field(max_length=16)] = []
    like: TokenText | None = None
    matters_in: Name | None = None
    not_in: Name | None = None


class NoQuestion(Question):
    """A question without fields."""


class SavedQuestion(Question):
    """A question whose answer goes into a saved page."""

    route: Name
    question: dict[str, Any] = {}


class SaveQuestion(Question):
    """A page that works offline."""

    state: dict[Name, Any] = {}
    questions: Annotated[list[SavedQuestion], Field(min_length=1, max_length=MOST_SAVED)]
