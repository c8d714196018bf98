"""Options of a command made from the fields of a dataclass, so that each is described once."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer


def field_help(config: type) -> dict[str, str]:
    """The string under each field of a dataclass.

    >>> from saccade.lenses.fit_config import FitConfig
    >>> field_help(FitConfig)["window"]
    'How many tokens the model sees at once.'
    """
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(config))).body
    assert isinstance(body, ast.ClassDef), f"{config} is not written as a class"
    found: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def with_options_of(config: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for every field of a dataclass, passed on as ``settings``.

    A field that is a tuple becomes an option that can be given again and again.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in _parameters(command) if p.name != "settings"]
        options = [_option(field, config) for field in fields(config)]
        names = {field.name for field in fields(config)}

        def run(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
            values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
            command(**given, settings=config(**values))

        run.__doc__ = command.__doc__
        # What typer reads in place of the bare **given.
        run.__signature__ = inspect.Signature([*own, *options])  # pyright: ignore[reportFunctionMemberAccess]
        run.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
        return run

    return decorate


def _parameters(command: Callable[..., None]) -> list[inspect.Parameter]:
    hints = get_type_hints(command, include_extras=True)
    given = inspect.signature(command).parameters.values()
    return [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in given]


def _option(field: Any, config: type) -> inspect.Parameter:
    kind = get_type_hints(config)[field.name]
    default = field.default
    assert default is not MISSING, f"{config.__name__}.{field.name} has no default"
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], list(default)
    help_ = field_help(config)[field.name]
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(help=help_)],
    )
