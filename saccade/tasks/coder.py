"""What all ways of turning text into ids have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from saccade.tasks.ragged import Ragged


@runtime_checkable
class Coder(Protocol):
    """Turns text into ids and ids into text."""

    def __len__(self) -> int:
        """How many different ids there are."""
        ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without BOS and EOS."""
        ...

    def encode_all(self, texts: Sequence[str]) -> Ragged:
        """The same for many texts."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first EOS."""
        ...

    def unknown(self, text: str) -> list[str]:
        """The parts of a text that its ids do not tell: words or characters never seen."""
        ...

    def labels(self, ids: Sequence[int]) -> list[str]:
        """How each id is written, the symbols included: the axis of a picture."""
        ...

    def to_json(self) -> dict[str, Any]:
        """All that is needed to make it again, with its ``kind``."""
        ...
