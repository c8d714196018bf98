"""The selects by name, for recipes and the command line."""

import difflib
from collections.abc import Callable

from saccade.attention.gumbel import GumbelSelect
from saccade.attention.hard import HardSelect
from saccade.attention.mean import MeanSelect
from saccade.attention.monotonic import MonotonicSelect
from saccade.attention.select import Select
from saccade.attention.soft import SoftSelect
from saccade.errors import UsageError

SelectMaker = Callable[[], Select]

_SELECTS: dict[str, SelectMaker] = {
    "gumbel": GumbelSelect,
    "hard": HardSelect,
    "mean": MeanSelect,
    "monotonic": MonotonicSelect,
    "soft": SoftSelect,
}


def register_select(name: str) -> Callable[[SelectMaker], SelectMaker]:
    """Make a select known by its name; decorates what makes one, such as its class.

    >>> register_select("cold")(lambda: GumbelSelect(temperature=0.1))  # doctest: +ELLIPSIS
    <function ...>
    >>> make_select("cold").temperature
    0.1
    >>> del _SELECTS["cold"]
    """

    def add(maker: SelectMaker) -> SelectMaker:
        _SELECTS[name] = maker
        return maker

    return add


def select_names() -> tuple[str, ...]:
    """The names of the selects that are known."""
    return tuple(sorted(_SELECTS))


def make_select(name: str) -> Select:
    """A new select by its name, with the settings of its paper.

    >>> make_select("soft")
    SoftSelect()
    """
    if name not in _SELECTS:
        near = difflib.get_close_matches(name, _SELECTS, n=1)
        raise UsageError(
            f"no select {name!r}: known are {', '.join(select_names())}",
            hint=f"did you mean {near[0]!r}?" if near else "choose one of these",
        )
    return _SELECTS[name]()
