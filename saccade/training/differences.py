"""In what two settings differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, free: frozenset[str]) -> str:
    """Where two settings differ, in words; empty when they do not.

    Args:
        free: names of fields that may differ.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}, free=frozenset())
    'b.c: the run has 2, asked for is 3'
    """
    before, after = dict(flat(_plain(old))), dict(flat(_plain(new)))
    return "; ".join(
        f"{key}: the run has {before.get(key)!r}, asked for is {after.get(key)!r}"
        for key in {**before, **after}
        if before.get(key) != after.get(key) and key.rpartition(".")[2] not in free
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back: tuples are lists."""
    return json.loads(json.dumps(dict(values)))


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The innermost values of nested settings, with dots in their names.

    >>> dict(flat({"a": 1, "b": {"c": 2}}))
    {'a': 1, 'b.c': 2}
    """
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
