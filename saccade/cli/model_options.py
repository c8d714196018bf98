"""Options of every command that opens a language model: which one, its dtype and its device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from saccade.cli.options import parameters_of

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

NAME_HELP = "A hub name, a folder or a GGUF file. Default: SmolLM2-135M-Instruct."
ModelArgument = Annotated[str | None, typer.Argument(help=NAME_HELP)]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Which model a command opens, and how.

    A command with a parameter of this type, under `with_model_options`, has an option for each
    field.
    """

    model: Annotated[str | None, typer.Option(help=NAME_HELP)] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="float32 (default), bfloat16, float16, float64 or auto: as stored."),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="cpu (default), cuda, cuda:1, mps: where the model runs.")
    ] = None
    device_map: Annotated[
        str | None,
        typer.Option(help="Spread a large model over devices, as accelerate does: auto."),
    ] = None
    trust_remote_code: Annotated[
        bool,
        typer.Option(
            "--trust-remote-code",
            help="Run Python code that comes with the model; never together with - (stdin).",
        ),
    ] = False

    def open(self, *, taps: str | None = None) -> LanguageModel:
        """Open the model."""
        from saccade.interp.heads.model import open_model

        return open_model(
            self.model,
            dtype=self.dtype,
            device=self.device,
            device_map=self.device_map,
            taps=taps,
            trust_remote_code=self.trust_remote_code,
        )


DEFAULT_OPTIONS = ModelOptions()


def with_model_options(command: Callable[..., None], *, name: Any = None) -> Callable[..., None]:
    """Give a command the options of its `ModelOptions` parameter, in the place of it.

    Args:
        name: the type of the model's name where it is no option, `ModelArgument`.
    """
    own = parameters_of(command)
    (chosen,) = (each.name for each in own if each.annotation is ModelOptions)
    hints = get_type_hints(ModelOptions, include_extras=True)
    if name is not None:
        hints["model"] = name
    options = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(ModelOptions)
    ]
    signature = [
        each for parameter in own for each in (options if parameter.name == chosen else [parameter])
    ]

    def run(**given: Any) -> None:
        values = {field.name: given.pop(field.name) for field in fields(ModelOptions)}
        command(**given, **{chosen: ModelOptions(**values)})

    run.__doc__ = command.__doc__
    # What typer reads in place of the bare **given.
    run.__signature__ = inspect.Signature(signature)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {each.name: each.annotation for each in signature}
    return run
