"""Settings: their ranges, those of a training, and how they are read. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MinLen

from saccade.errors import RecipeError, UsageError, suggest

# The range of each setting: named types for annotations, and their check.
#
# A setting is a field of a dataclass. Its range is in its annotation; a float is always finite.
# Upper bounds are far above what anyone trains on one machine: they catch typing errors before
# memory is allocated for hours.


@dataclass(frozen=True)
class Ascending:
    """Marks a pair whose first value must not be above the second."""


Width = Annotated[int, Ge(1), Le(2**16)]
"""Units of a layer, dimension of a vector."""
Side = Annotated[int, Ge(1), Le(4096)]
"""Pixels."""
Few = Annotated[int, Ge(1), Le(1000)]
"""Layers, heads, glimpses: small counts, computed one after the other."""
FewOrNone = Annotated[int, Ge(0), Le(1000)]
Many = Annotated[int, Ge(1), Le(10**8)]
"""Examples of a set, tokens of a batch, words of a vocabulary."""
Batch = Annotated[int, Ge(1), Le(2**16)]
"""Examples in memory at once."""
ManyOrNone = Annotated[int, Ge(0), Le(10**9)]
"""Steps, epochs: 0 is no limit."""
Seed = Annotated[int, Ge(0), Le(2**32 - 1)]
"""torch's generator on a CPU uses only these bits."""
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
"""A fraction from 0 to 1, both included."""
Part = Annotated[float, Gt(0), Lt(1)]
"""A fraction between 0 and 1, both excluded."""
BelowOne = Annotated[float, Ge(0), Lt(1)]
"""Dropout, which must not be 1; decay rates of moving averages."""
Span = Annotated[tuple[Few, Few], Ascending()]
"""Minimum and maximum."""
Widths = Annotated[tuple[Width, ...], MinLen(1)]
Fews = Annotated[tuple[Few, ...], MinLen(1)]
Positives = Annotated[tuple[Positive, ...], MinLen(1)]

_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def problems_in(settings: Any) -> list[str]:
    """Problems of the values of a dataclass's fields, each as ``name: ...``.

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
    """How a value violates a type with a range; empty if it does not.

    >>> problem_of(0.9, tuple[Share, Share]), problem_of((0.9, 2.0), tuple[Share, Share])
    ('expected several values, got 0.9', 'expected at most 1, got 2.0')
    """
    limits: list[Any] = []
    if get_origin(kind) is Annotated:
        kind, *limits = get_args(kind)
    problem = _wrong_type(value, kind)
    if problem:
        return problem
    return next((problem for limit in limits if (problem := _beyond(value, limit))), "")


def _wrong_type(value: Any, kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "" if value in inside else _expected(f"one of {', '.join(map(str, inside))};", value)
    if origin in (Union, UnionType):
        problems = [problem_of(value, each) for each in inside if each is not NoneType]
        return "" if "" in problems or (value is None and NoneType in inside) else problems[0]
    if origin is tuple:
        return _wrong_values(value, inside)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and not math.isfinite(value):
            return _expected("a finite number,", value)
        return "" if is_number else _expected("a number,", value)
    if kind not in _NAMES or type(value) is kind:
        return ""
    return _expected(f"{_NAMES[kind]},", value)


def _wrong_values(values: Any, kinds: tuple[Any, ...]) -> str:
    if not isinstance(values, tuple):
        return _expected("several values,", values)
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(values)
    if len(values) != len(kinds):
        return _expected(f"{len(kinds)} values,", values)
    problems = (problem_of(value, kind) for value, kind in zip(values, kinds, strict=True))
    return next((problem for problem in problems if problem), "")


def _beyond(value: Any, limit: Any) -> str:
    """How a value of the right type violates one limit."""
    match limit:
        case Ge(ge=least) if value < least:  # pyright: ignore[reportOperatorIssue]
            return _expected(f"{least} or more,", value)
        case Gt(gt=bound) if value <= bound:  # pyright: ignore[reportOperatorIssue]
            return _expected(f"more than {bound},", value)
        case Le(le=most) if value > most:  # pyright: ignore[reportOperatorIssue]
            return _expected(f"at most {most},", value)
        case Lt(lt=bound) if value >= bound:  # pyright: ignore[reportOperatorIssue]
            return _expected(f"less than {bound},", value)
        case MinLen(min_length=least) if len(value) < least:
            return f"expected at least {least} value{'s' * (least > 1)}, got none"
        case Ascending() if value[0] > value[1]:
            return _expected("the smaller value first,", value)
        case _:
            return ""


def _expected(expected: str, value: Any) -> str:
    shown = repr(value)
    return f"expected {expected} got {shown[:60]}{'...' * (len(shown) > 60)}"


Optimiser = Literal["adam", "adamw", "sgd", "rmsprop", "muon"]
Schedule = Literal["constant", "warmup-inverse-sqrt", "linear", "cosine", "plateau-halving"]
Precision = Literal["float32", "bfloat16"]

# Settings of duration and device: a run may be resumed with other values.
FREE = frozenset({"minutes", "checkpoint_minutes", "device"})
# Schedules that do not depend on the total number of steps, so that a run may be extended.
OPEN_ENDED = frozenset({"constant", "warmup-inverse-sqrt", "plateau-halving"})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The settings of a training. It ends at whichever of epochs, steps and minutes comes first.

    With none of the three nothing is trained: for systems that are fitted by counting.
    """

    epochs: ManyOrNone = 0
    """Number of epochs; 0: no limit."""
    steps: ManyOrNone = 0
    """Number of optimiser steps; 0: no limit."""
    minutes: NonNegative = 0.0
    """Time limit in minutes, validation included; 0: no limit."""
    optimiser: Optimiser = "adam"
    """adam, adamw, sgd, rmsprop, or muon on matrices with adam on the rest."""
    learning_rate: Positive = 1e-3
    """The peak learning rate of the schedule."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay rates of adam's moving averages of the gradient and of its square."""
    momentum: BelowOne = 0.0
    """Momentum of sgd and rmsprop; muon's is 0.95."""
    weight_decay: NonNegative = 0.0
    """Weight decay of matrices, not of biases; decoupled with adamw and muon."""
    clip: NonNegative = 1.0
    """Maximum norm of the gradient; 0: no clipping."""
    schedule: Schedule = "constant"
    """constant, warmup-inverse-sqrt, linear and cosine (both to zero), or plateau-halving."""
    warmup: ManyOrNone = 0
    """Warmup steps, in which the learning rate rises from zero."""
    halve_after: Many = 1
    """plateau-halving: halve the learning rate after this many validations without a better
    score."""
    validate_steps: ManyOrNone = 0
    """Steps between validations; 0: after every epoch."""
    patience: ManyOrNone = 0
    """Early stopping: end after this many validations without a better score; 0: never."""
    precision: Precision = "float32"
    """bfloat16: matrix products of a step have 8 bits of precision; weights and sums stay
    float32."""
    average_last: FewOrNone = 0
    """Average the weights of this many last validations, and use the mean if it is better."""
    log_steps: Many = 50
    """Steps between lines of the log."""
    checkpoint_minutes: NonNegative = 5.0
    """Minutes between checkpoints; a killed run loses at most this much."""
    seed: Seed = 0
    """Seed of all random draws."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if available."""

    def __post_init__(self) -> None:
        wrong = _problems(self)
        if wrong:
            raise _refused(wrong, where="the training's settings")

    def may_change(self) -> frozenset[str]:
        """Fields that may change when a run is resumed."""
        return FREE | ({"epochs", "steps"} if self.schedule in OPEN_ENDED else frozenset())


def _problems(config: TrainConfig) -> list[str]:
    wrong = problems_in(config)
    if config.schedule == "warmup-inverse-sqrt" and config.warmup == 0:
        wrong.append("warmup: the schedule warmup-inverse-sqrt needs 1 or more, got 0")
    return wrong


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, free: frozenset[str]) -> str:
    """Where two settings differ, in words; empty when they do not.

    Args:
        free: names of fields that may differ.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}, free=frozenset())
    'b.c: the run has 2, asked for is 3'
    """
    before, after = dict(flat(plain(old))), dict(flat(plain(new)))
    return "; ".join(
        f"{key}: the run has {before.get(key)!r}, asked for is {after.get(key)!r}"
        for key in {**before, **after}
        if before.get(key) != after.get(key) and key.rpartition(".")[2] not in free
    )


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """As after a round trip through JSON: tuples become lists, keys strings."""
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


# Settings of a recipe, as nested dataclasses: from ``key=value``, or from a run's JSON.

Settings = TypeVar("Settings")
YES, NO = ("true", "yes", "1"), ("false", "no", "0")


class Setting(NamedTuple):
    """One field of settings that may be nested."""

    key: str
    """With dots: ``training.learning_rate``."""
    kind: Any
    """Its type, with its range."""
    value: Any


def list_settings(settings: Any, prefix: str = "") -> Iterator[Setting]:
    """Every field, in order, nested ones included."""
    kinds = kinds_of(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from list_settings(value, f"{prefix}{field.name}.")
        else:
            yield Setting(f"{prefix}{field.name}", kinds[field.name], value)


def with_settings(settings: Settings, words: Sequence[str]) -> Settings:
    """Settings changed by words of the form ``key=value``; one error lists all problems.

    A nested field may be given by its last name if that is unique.

    >>> with_settings(TrainConfig(), ["learning_rate=3e-4", "schedule=cosine"]).learning_rate
    0.0003
    """
    known = {setting.key: setting for setting in list_settings(settings)}
    changes, wrong = {}, []
    for word in words:
        key, equals, text = word.partition("=")
        try:
            if not equals:
                raise ValueError("expected key=value")
            setting = known[_full(key.strip(), list(known))]
            value = parse(text.strip(), setting.kind)
            if problem := problem_of(value, setting.kind):
                raise ValueError(problem)
            changes[setting.key] = value
        except ValueError as error:
            wrong.append(f"{key}: {error}")
    if wrong:
        raise _refused(wrong)
    try:
        return _replaced(settings, changes)
    except ValueError as error:  # raised by the settings themselves
        raise _refused([str(error)]) from error


# Old names of settings in runs that were trained before these were renamed.
RENAMED = {"wander": "max_shift", "jitter": "max_shift"}


def _renamed(key: str) -> str:
    outer, dot, name = key.rpartition(".")
    return f"{outer}{dot}{RENAMED.get(name, name)}"


def read_settings(settings: Settings, stored: Mapping[str, Any]) -> Settings:
    """Settings as stored in a run, on top of the recipe's; refuses those of another recipe."""
    known = {setting.key: setting for setting in list_settings(settings)}
    given = {_renamed(key): value for key, value in flat(stored)}
    wrong = [f"{key} is not known any more" for key in given if key not in known]
    wrong += [f"{key} is new" for key in known if key not in given]
    if wrong:
        raise RecipeError(
            f"the run was made by another version of its recipe: {'; '.join(wrong)}",
            hint="use the version of saccade that made it, or train it again",
        )
    changes = {
        key: tuple(value) if isinstance(value, list) else value for key, value in given.items()
    }
    found = {key: problem_of(value, known[key].kind) for key, value in changes.items()}
    if wrong := [f"{key}: {problem}" for key, problem in found.items() if problem]:
        raise RecipeError(
            f"the run's settings cannot be used: {'; '.join(wrong)}",
            hint="manifest.json of the run was changed: copy the run again, or train it again",
        )
    try:
        return _replaced(settings, changes)
    except ValueError as error:
        raise RecipeError(
            f"the run's settings cannot be used: {error}", hint="is its manifest.json damaged?"
        ) from error


def check_settings(settings: Any) -> None:
    """Refuse settings with values out of their ranges, with one message for all."""
    found = {each.key: problem_of(each.value, each.kind) for each in list_settings(settings)}
    if wrong := [f"{key}: {problem}" for key, problem in found.items() if problem]:
        raise _refused(wrong, where=type(settings).__name__)


def parse(text: str, kind: Any) -> Any:
    """Parse a value of a type.

    >>> parse("3", int), parse("none", int | None), parse("1,2", tuple[int, ...])
    (3, None, (1, 2))
    """
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return parse(text, inside[0])
    if origin is Literal:
        return _one_of(text, inside)
    if origin in (Union, UnionType):
        if NoneType in inside and text.lower() == "none":
            return None
        return parse(text, next(each for each in inside if each is not NoneType))
    if origin is tuple:
        return _several(text, inside)
    if kind is bool:
        if text.lower() not in (*YES, *NO):
            raise ValueError(f"expected true or false, got {text!r}")
        return text.lower() in YES
    assert kind in _NAMES, f"a setting cannot be of type {kind}"
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected {_NAMES[kind]}, got {text!r}") from None


def _one_of(text: str, choices: Sequence[Any]) -> Any:
    named = {str(choice): choice for choice in choices}
    if text not in named:
        guess = suggest(text, named)
        meant = f" ({guess})" if guess else ""
        raise ValueError(f"expected one of {', '.join(named)}; got {text!r}{meant}")
    return named[text]


def _several(text: str, inside: Sequence[Any]) -> tuple[Any, ...]:
    parts = [part.strip() for part in text.strip("()[] ").split(",") if part.strip()]
    if inside[-1] is Ellipsis:
        return tuple(parse(part, inside[0]) for part in parts)
    if len(parts) != len(inside):
        raise ValueError(f"expected {len(inside)} values with commas, got {text!r}")
    return tuple(parse(part, kind) for part, kind in zip(parts, inside, strict=True))


def _full(key: str, known: Sequence[str]) -> str:
    """The full name of a setting, which may be given by its last part."""
    if key in known:
        return key
    ends = [name for name in known if name.rpartition(".")[2] == key]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ValueError(f"could be {' or '.join(ends)}")
    short = {name.rpartition(".")[2]: name for name in known}
    guess = suggest(key, [*known, *short])
    raise ValueError(f"unknown key ({guess})" if guess else "unknown key")


def _replaced(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    own: dict[str, Any] = {}
    assert is_dataclass(settings) and not isinstance(settings, type), "settings are a dataclass"
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            start = f"{field.name}."
            inner = {k[len(start) :]: v for k, v in changes.items() if k.startswith(start)}
            own[field.name] = _replaced(value, inner) if inner else value
        elif field.name in changes:
            own[field.name] = changes[field.name]
    return replace(settings, **own)


def _refused(wrong: Sequence[str], *, where: str = "--set") -> UsageError:
    number = f"{len(wrong)} problem{'s' * (len(wrong) > 1)}"
    return UsageError(
        f"{number} in {where}: {'; '.join(wrong)}",
        hint="`saccade recipes NAME` shows what can be set",
    )
