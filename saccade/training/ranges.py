"""Which values a setting may have: named ranges for annotations, and the one place that checks.

A setting is a field of a dataclass. Its range stands in its annotation, where a reader looks for
it; a float is finite wherever it stands. Upper bounds are far above what anyone trains on one
machine: they catch a slip of the hand before it becomes hours of allocating memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen


@dataclass(frozen=True)
class Ascending:
    """Marks a pair whose first value must not be above the second."""


Width = Annotated[int, Ge(1), Le(2**16)]
"""Units of a layer, numbers of a vector."""
Side = Annotated[int, Ge(1), Le(4096)]
"""Pixels."""
Few = Annotated[int, Ge(1), Le(1000)]
"""Layers, heads, glimpses: what is counted on fingers and computed one after the other."""
FewOrNone = Annotated[int, Ge(0), Le(1000)]
Many = Annotated[int, Ge(1), Le(10**8)]
"""Examples of a set, tokens of a batch, words of a vocabulary."""
Batch = Annotated[int, Ge(1), Le(2**16)]
"""Examples that are held in memory at once."""
ManyOrNone = Annotated[int, Ge(0), Le(10**9)]
"""Steps, epochs: 0 stands for no limit."""
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
"""torch's generator on a CPU drops all other bits."""
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
"""A part of the whole, none and all included."""
Part = Annotated[float, Gt(0), Lt(1)]
"""A part of the whole that leaves something on both sides."""
BelowOne = Annotated[float, Ge(0), Lt(1)]
"""Dropout: what is left out must not be everything. Averages that follow slowly."""
Span = Annotated[tuple[Few, Few], Ascending()]
"""The least and the most."""
Widths = Annotated[tuple[Width, ...], MinLen(1)]
Fews = Annotated[tuple[Few, ...], MinLen(1)]
Positives = Annotated[tuple[Positive, ...], MinLen(1)]

_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def problems_in(settings: Any) -> list[str]:
    """What is wrong with the values of a dataclass's fields, each as ``name: ...``.

    >>> @dataclass
    ... class Sizes:
    ...     d_model: Width = 0
    ...     dropout: BelowOne = float("nan")
    >>> problems_in(Sizes())
    ['d_model: expected 1 or more, got 0', 'dropout: expected a finite number, got nan']
    """
    kinds = kinds_of(type(settings))
    found = {
        field.name: problem_of(getattr(settings, field.name), kinds[field.name])
        for field in fields(settings)
    }
    return [f"{name}: {problem}" for name, problem in found.items() if problem]


@cache
def kinds_of(settings: type) -> dict[str, Any]:
    """The types of a dataclass's fields, with their ranges."""
    return get_type_hints(settings, include_extras=True)


def problem_of(value: Any, kind: Any) -> str:
    """How a value misses a type with a range; empty when it does not.

    >>> problem_of(0.9, tuple[Share, Share]), problem_of((0.9, 2.0), tuple[Share, Share])
    ('expected several values, got 0.9', 'expected at most 1, got 2.0')
    """
    limits: list[Any] = []
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
    problem = _wrong_type(value, kind)
    if problem:
        return problem
    return next((told for limit in limits if (told := _beyond(value, limit))), "")


def _wrong_type(value: Any, kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "" if value in inside else _told(f"one of {', '.join(map(str, inside))};", value)
    if origin in (Union, UnionType):
        told = [problem_of(value, each) for each in inside if each is not NoneType]
        return "" if "" in told or (value is None and NoneType in inside) else told[0]
    if origin is tuple:
        return _wrong_values(value, inside)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not math.isfinite(value):
            return _told("a finite number,", value)
        return "" if is_number else _told("a number,", value)
    if kind not in _NAMES or type(value) is kind:
        return ""
    return _told(f"{_NAMES[kind]},", value)


def _wrong_values(values: Any, kinds: tuple[Any, ...]) -> str:
    if not isinstance(values, tuple):
        return _told("several values,", values)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(values)
    if len(values) != len(kinds):
        return _told(f"{len(kinds)} values,", values)
    told = (problem_of(value, kind) for value, kind in zip(values, kinds, strict=True))
    return next((problem for problem in told if problem), "")


def _beyond(value: Any, limit: Any) -> str:
    """How a value of the right type misses one limit."""
    match limit:
        case Ge(ge=least) if value < least:  # pyright: ignore[reportOperatorIssue]
            return _told(f"{least} or more,", value)
        case Gt(gt=bound) if value <= bound:  # pyright: ignore[reportOperatorIssue]
            return _told(f"more than {bound},", value)
        case Le(le=most) if value > most:  # pyright: ignore[reportOperatorIssue]
            return _told(f"at most {most},", value)
        case Lt(lt=bound) if value >= bound:  # pyright: ignore[reportOperatorIssue]
            return _told(f"less than {bound},", value)
        case MinLen(min_length=least) if len(value) < least:
            return f"expected at least {least} value{'s' * (least > 1)}, got none"
        case Ascending() if value[0] > value[1]:
            return _told("the smaller value first,", value)
        case _:
            return ""


def _told(expected: str, value: Any) -> str:
    shown = repr(value)
    return f"expected {expected} got {shown[:60]}{'...' * (len(shown) > 60)}"
