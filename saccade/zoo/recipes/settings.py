"""Settings from words: ``key=value`` by the types of a dataclass's fields, or from a run's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from saccade.errors import RecipeError, UsageError, suggest
from saccade.zoo.training.config import flat, kinds_of, problem_of

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
    """Every field, those of nested dataclasses after those before them."""
    kinds = kinds_of(type(settings))
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from list_settings(value, f"{prefix}{field.name}.")
        else:
            yield Setting(f"{prefix}{field.name}", kinds[field.name], value)


def with_settings(settings: Settings, words: Sequence[str]) -> Settings:
    """Settings changed by words of the form ``key=value``; all that is wrong is told at once.

    A nested field may be named without the names before it as long as there is only one such.

    >>> from saccade.zoo.training.config import TrainConfig
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
    except ValueError as error:  # what the settings themselves refuse
        raise _refused([str(error)]) from error


def read_settings(settings: Settings, stored: Mapping[str, Any]) -> Settings:
    """Settings as a run has stored them, on top of the recipe's; refuses another recipe's."""
    known = {setting.key: setting for setting in list_settings(settings)}
    held = dict(flat(stored))
    wrong = [f"{key} is not known any more" for key in held if key not in known]
    wrong += [f"{key} is new" for key in known if key not in held]
    if wrong:
        raise RecipeError(
            f"the run was made by another version of its recipe: {'; '.join(wrong)}",
            hint="use the version of saccade that made it, or train it again",
        )
    changes = {
        key: tuple(value) if isinstance(value, list) else value for key, value in held.items()
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
    """Refuse settings with values out of their ranges, all in one message."""
    found = {each.key: problem_of(each.value, each.kind) for each in list_settings(settings)}
    if wrong := [f"{key}: {problem}" for key, problem in found.items() if problem]:
        raise _refused(wrong, where=type(settings).__name__)


def parse(text: str, kind: Any) -> Any:
    """A value of a type from how a user writes it.

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
    names = {int: "a whole number", float: "a number", str: "a text"}
    assert kind in names, f"a setting cannot be of type {kind}"
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected {names[kind]}, got {text!r}") from None


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
    """The whole name of a setting that may have been given by its last part."""
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
