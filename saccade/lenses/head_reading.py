"""What one lens says at one position, with the quality of that lens beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, final


class Word(NamedTuple):
    """A word of the vocabulary and its figure in an order."""

    id: int
    text: str
    value: float


@final
class Words(Sequence[Word]):
    """Words of an order; their texts are looked up when they are first wanted.

    A reading holds some ten thousand words, of which few are ever shown: looking all of them up
    would take as long as a tenth of the reading.

    >>> words = Words([1, 0], [0.5, 0.25], lambda ids: [" ab"[id_] for id_ in ids])
    >>> len(words), words[0]
    (2, Word(id=1, text='a', value=0.5))
    """

    __slots__ = ("_ids", "_made", "_show", "_values")

    def __init__(
        self, ids: list[int], values: list[float], show: Callable[[list[int]], list[str]]
    ) -> None:
        self._ids, self._values, self._show = ids, values, show
        self._made: tuple[Word, ...] | None = None

    def _words(self) -> tuple[Word, ...]:
        if self._made is None:
            texts = self._show(self._ids)
            self._made = tuple(map(Word, self._ids, texts, self._values))
        return self._made

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Any:
        return self._words()[index]

    def __iter__(self) -> Iterator[Word]:
        return iter(self._words())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash((*self._ids, *self._values))

    def __repr__(self) -> str:
        return repr(self._words())


class Source(NamedTuple):
    """A position that a head attends to."""

    position: int
    text: str
    weight: float


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadReading:
    """What one head says, through its lens."""

    layer: int
    head: int | None
    """None where the lens reads the residual stream after the layer."""
    says: float
    """KL from the constant lens to the lens here, in nats: how far it is from saying nothing."""
    contributes: float | None
    """What the head adds directly to the logit of the word that the model predicts (direct logit
    attribution); None for the residual stream and for models without a direct path."""
    quality: dict[str, float]
    """The lens's own figures on held-out text; empty when it was never scored."""
    predicts: Sequence[Word]
    """The likeliest words, with their probabilities."""
    adds: Sequence[Word]
    """The words it makes likelier than they always are, each with its share of ``says``."""
    suppresses: Sequence[Word]
    """The words it makes less likely, with ``constant log(lens / constant)``, below zero."""
    unembedded: Sequence[Word]
    """What the raw unembedding shows, with logits; empty unless asked for."""
    attends: Sequence[Source]
    """The positions it attends to most."""

    @property
    def name(self) -> str:
        """How the head is called: ``29.0`` is head 0 of layer 29, ``29`` the stream after it."""
        return str(self.layer) if self.head is None else f"{self.layer}.{self.head}"

    @property
    def explained(self) -> float | None:
        """The share of the constant lens's KL that this lens removes, on held-out text.

        0 is a lens that knows no more than the constant one, 1 would be the model itself; None
        when the lens was never scored.
        """
        return share_explained(self.quality)

    @property
    def fidelity(self) -> float | None:
        """The correlation of what its lens says with what removing the head does to the model.

        Measured by `saccade lens fidelity`; None where it never was.
        """
        return self.quality.get("ablation")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; numbers to six digits."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}


def share_explained(quality: Mapping[str, float]) -> float | None:
    """The share of the constant lens's KL that a lens removes; None when it was never scored.

    >>> share_explained({"kl": 3.0, "gain": 1.0})
    0.25
    """
    if not {"kl", "gain"} <= quality.keys():
        return None
    constant = quality["kl"] + quality["gain"]
    return quality["gain"] / constant if constant > 0 else 0.0


def plain(value: Any) -> Any:
    """A figure, a word or several, as JSON writes them.

    >>> plain((Word(3, " a", 1 / 3),))
    [{'id': 3, 'text': ' a', 'value': 0.333333}]
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Word | Source):
        return plain(value._asdict())
    if isinstance(value, Words):  # written out: a reading holds ten thousand of them
        return [{"id": w.id, "text": w.text, "value": float(f"{w.value:.6g}")} for w in value]
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return value
