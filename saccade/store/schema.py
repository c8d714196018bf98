"""JSON that comes from a file: parsed and checked against a dataclass, or refused in one line.

A manifest may have been edited, truncated or written by another program. Its values decide
what is computed later, so each value is checked on input: `parse_json` refuses invalid
JSON, numbers that are not finite and unbounded nesting; `conform` refuses values of another type
or outside the range that a dataclass declares for its fields.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias, TypeVar

from annotated_types import Ge, Le

from saccade.errors import StoreError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

DIGEST = "sha256"
_AGAIN = "copy or download it again, or create it again"
_SHOWN = 60  # characters of a wrong value

Declared = TypeVar("Declared")
Seed: TypeAlias = Annotated[int, Ge(0), Le(2**63 - 1)]
"""Range of seeds that every random number generator accepts, torch's and others."""


def parse_json(text: str | bytes, *, where: object) -> Any:
    """The value of a JSON text; every number in it is finite.

    Args:
        where: the source named in error messages, usually the path of the file.

    Raises:
        StoreError: the text is not JSON, holds NaN or an infinite number, or nests too deeply.

    >>> parse_json('{"threshold": 0.5}', where="guard.json")
    {'threshold': 0.5}
    >>> parse_json('{"threshold": NaN}', where="guard.json")
    Traceback (most recent call last):
    saccade.errors.StoreError: guard.json is damaged: expected finite numbers, found NaN
    """

    def refuse(found: str) -> NoReturn:
        raise StoreError(
            f"{where} is damaged: expected finite numbers, found {found[:_SHOWN]}", hint=_AGAIN
        )

    def finite(digits: str) -> float:
        return value if math.isfinite(value := float(digits)) else refuse(digits)

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite)
    except RecursionError as error:
        raise StoreError(
            f"{where} is damaged: expected a few levels of nesting, found hundreds", hint=_AGAIN
        ) from error
    except ValueError as error:  # not JSON, not UTF-8, or an integer of thousands of digits
        reason = str(error).partition("\n")[0]
        raise StoreError(
            f"{where} is damaged: expected JSON, found {reason}", hint=_AGAIN
        ) from error


def conform(kind: type[Declared], value: object, *, where: object) -> Declared:
    """Convert a value from `parse_json` to the dataclass that declares it.

    Types are strict: "3" and true are not integers. The range of a field is in its
    annotation (``Annotated[int, Ge(1)]``, of the package annotated-types). Unknown fields are
    refused, because with a misspelt name the default would be used silently.

    Raises:
        StoreError: all problems, in one line.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Guard:
    ...     window: int
    >>> conform(Guard, {"window": "2"}, where="a.json")
    Traceback (most recent call last):
    saccade.errors.StoreError: a.json is damaged: window: expected a valid integer, found '2'
    """
    from pydantic import ValidationError

    try:
        # Through JSON, so that its arrays may become tuples although types are strict.
        return _adapter(kind).validate_json(json.dumps(value), strict=True, extra="forbid")
    except ValidationError as error:
        problems = [_message(each) for each in error.errors(include_url=False)]
        raise StoreError(f"{where} is damaged: {'; '.join(problems)}", hint=_AGAIN) from error


def with_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a manifest with their digest, which `without_digest` verifies.

    >>> sealed = with_digest({"step": 3})
    >>> without_digest(sealed, where="a.json")
    {'step': 3}
    >>> without_digest({**sealed, "step": 4}, where="a.json")
    Traceback (most recent call last):
    saccade.errors.StoreError: a.json was changed after it was written
    """
    return {**values, DIGEST: _digest(values)}


def without_digest(values: Mapping[str, Any], *, where: object) -> dict[str, Any]:
    """Undo `with_digest`; files of versions that wrote no digest are not verified.

    Raises:
        StoreError: a value was changed, removed or added.
    """
    content = {name: value for name, value in values.items() if name != DIGEST}
    if DIGEST in values and values[DIGEST] != _digest(content):
        raise StoreError(f"{where} was changed after it was written", hint=_AGAIN)
    return content


def _digest(values: Mapping[str, Any]) -> str:
    """A digest that does not depend on the order of the names."""
    text = json.dumps(dict(values), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _adapter(kind: type[Declared]) -> TypeAdapter[Declared]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _message(problem: Any) -> str:
    """Format one problem that pydantic found: field, expected value, found value."""
    place = ".".join(str(part) for part in problem["loc"])
    start = f"{place}: " if place else ""
    if problem["type"] in ("missing", "missing_argument"):
        return f"{start}expected a value, found none"
    if problem["type"] == "unexpected_keyword_argument":
        return f"{start}unknown field"
    expected = problem["msg"].removeprefix("Input should be ")
    expected = expected.replace("String should match", "a match of")
    found = repr(problem["input"])
    return f"{start}expected {expected}, found {found[:_SHOWN]}{'...' * (len(found) > _SHOWN)}"
