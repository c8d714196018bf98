"""What was made is kept for the next who asks, up to so many bytes; the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar, final

Made = TypeVar("Made")


@final
class Keeping(Generic[Made]):
    """A cache bounded by size.

    >>> kept = Keeping(5, size=len)
    >>> kept.get("a", lambda: "xxx"), kept.get("a", lambda: "never made")
    ('xxx', 'xxx')
    >>> kept.get("b", lambda: "yyy")
    'yyy'
    >>> "a" in kept
    False
    """

    def __init__(self, most: int, *, size: Callable[[Made], int]) -> None:
        self._most, self._size = most, size
        self._kept: OrderedDict[str, Made] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def find(self, key: str) -> Made | None:
        """What is kept; None if nothing is."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: str, made: Made) -> None:
        """Keep something; it stays though it be larger than all, until the next one comes."""
        self._kept[key] = made
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(map(self._size, self._kept.values())) > self._most:
            self._kept.popitem(last=False)

    def get(self, key: str, make: Callable[[], Made]) -> Made:
        """What is kept, or what is made now and kept."""
        found = self.find(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found
