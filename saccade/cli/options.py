"""Options of commands: shared ones, those of a model or a dataclass, and what all refuse."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import math
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from annotated_types import Ge, Le

from saccade.cli.text_input import STDIN
from saccade.errors import UsageError

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Options that several commands share.

LensName = Annotated[
    str | None, typer.Option(help="A folder or a hub name. Default: where `lens fit` writes.")
]
Ablate = Annotated[
    Literal["mean", "zero", "resample"],
    typer.Option(
        help="Replace a head by its mean over a text, by zero, or by its activation at a random "
        "token of that text."
    ),
]
OtherPrompt = Annotated[
    str | None,
    typer.Option(
        "--from", help="Replace a head by its activation at the last token of this prompt."
    ),
]
MeanText = Annotated[
    str | None, typer.Option(help="Text of the mean. Default: text that the model generates.")
]
LensPlugin = Annotated[
    Path | None, typer.Option(help="A Python file with a lens kind of your own.")
]
RecipePlugin = Annotated[Path | None, typer.Option(help="A Python file with a recipe of your own.")]
DataFolder = Annotated[
    Path | None,
    typer.Option(help="The folder with data sets. Default: SACCADE_DATA, or the cache."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a trained run.")]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put the prompt through the model's chat template.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonOfHeads = Annotated[bool, typer.Option("--json", help="Print JSON, with every head.")]
JsonFile = Annotated[Path | None, typer.Option(help="Also write the JSON to this file.")]
HtmlFile = Annotated[Path | None, typer.Option(help="Write an interactive page to this HTML file.")]
GifFile = Annotated[
    Path | None, typer.Option(help="Write an animation to this GIF file, for traces over an image.")
]
HeadsShown = Annotated[int, typer.Option(help="Number of heads to show.", min=1)]
Window = Annotated[int, typer.Option(help="Tokens in a window of text.")]
MostTokens = Annotated[int, typer.Option(help="Read at most this many tokens of the text.")]
Against = Annotated[
    str | None,
    typer.Option(help="Token whose logit is subtracted. Default: the mean of all tokens."),
]

_MOST_INT = 2**63 - 1  # what a tensor can hold
_INFO = typer.Option().__class__, typer.Argument().__class__


def refuse_trusted_stdin(*given: str | None, trust_remote_code: bool) -> None:
    """Refuse to run a model's own code in a process whose input others may write."""
    if trust_remote_code and STDIN in given:
        raise UsageError(
            "--trust-remote-code cannot be combined with input from stdin (-)",
            hint="give the text as an argument or a file, or leave out --trust-remote-code",
        )


def field_help(config: type) -> dict[str, str]:
    """The string under each field of a dataclass.

    >>> from saccade.interp.lenses.fit_config import FitConfig
    >>> field_help(FitConfig)["window"]
    'Tokens per window.'
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
        own = [p for p in parameters_of(command) if p.name != "settings"]
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


def strict(command: Callable[..., None]) -> Callable[..., None]:
    """The command, refusing values that no option can mean.

    A number outside the range of its annotation (``Annotated[int, Ge(1)]``) or not finite (click's
    own ranges let NaN pass), an integer that no tensor can hold, an empty path, which pathlib takes
    for the current folder, and an empty text where the option has another value without it.
    """
    parameters = [_strict(parameter) for parameter in parameters_of(command)]

    def run(**given: Any) -> None:
        command(**given)

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _strict(parameter: inspect.Parameter) -> inspect.Parameter:
    kind, *about = _parts(parameter.annotation)
    (info,) = (copy(each) for each in about if isinstance(each, _INFO))
    for each in about:
        if isinstance(each, Ge):
            info.min = each.ge
        elif isinstance(each, Le):
            info.max = each.le
    plain = _plain(kind)
    if plain is Path:
        info.parser = _path
    elif plain in (int, float):
        info.callback = _numbers
    elif plain is str and parameter.default not in ("", inspect.Parameter.empty):
        info.callback = _texts
    return parameter.replace(annotation=Annotated[kind, info])


def _parts(annotation: Any) -> tuple[Any, ...]:
    """A type and what it is annotated with."""
    return get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)


def _plain(kind: Any) -> Any:
    """The type of a single value.

    >>> _plain(list[Path] | None)
    <class 'pathlib.Path'>
    """
    if get_origin(kind) in (Union, UnionType, list):
        (kind,) = (_plain(each) for each in get_args(kind) if each is not type(None))
    return kind


def _path(text: str | Path) -> Path:
    if str(text) == "":
        raise typer.BadParameter("expected a path, got an empty text")
    return Path(text)


def _numbers(value: Any) -> Any:
    for each in value if isinstance(value, list | tuple) else [value]:
        if isinstance(each, float) and not math.isfinite(each):
            raise typer.BadParameter(f"expected a finite number, got {each}")
        if isinstance(each, int) and abs(each) > _MOST_INT:
            raise typer.BadParameter(
                f"expected a number below 2**63, got one of {len(str(each))} digits"
            )
    return value


def _texts(value: Any) -> Any:
    if "" in (value if isinstance(value, list | tuple) else [value]):
        raise typer.BadParameter("expected a text, got an empty one; leave the option out")
    return value


def parameters_of(command: Callable[..., None]) -> list[inspect.Parameter]:
    """The parameters of a command with their types resolved, all by keyword."""
    hints = get_type_hints(command, include_extras=True)
    given = inspect.signature(command).parameters.values()
    return [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in given]


def _option(field: Any, config: type) -> inspect.Parameter:
    kind, *ranges = _parts(get_type_hints(config, include_extras=True)[field.name])
    default = field.default
    assert default is not MISSING, f"{config.__name__}.{field.name} has no default"
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], list(default)
    help_ = field_help(config)[field.name]
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, *ranges, typer.Option(help=help_)],
    )


# The language model that a command opens: which one, its dtype and its device.

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


# Load a file of the user's own that registers a lens, an objective or a recipe.


def load_plugin(path: Path | None) -> None:
    """Run the file, so that what it registers is known; nothing without one."""
    if path is None:
        return
    spec = importlib.util.spec_from_file_location(f"saccade_plugin_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"no plugin at {path}", hint="give a Python file that registers something")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up the types of their fields
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise UsageError(
            f"the plugin {path} fails: {type(error).__name__}: {error}",
            hint="`saccade --debug ...` shows where",
        ) from error


# Data on stdout or in a file, whole lines at a time.


@contextmanager
def line_writer(path: str = STDIN) -> Iterator[Callable[[str], None]]:
    """A function that writes whole lines to a file, or to stdout for "-", and flushes them.

    Ctrl-C while it writes takes effect after the lines, so that a reader finds no broken one.
    """
    with ExitStack() as stack:
        file = (
            sys.stdout
            if path == STDIN
            else stack.enter_context(open(path, "w", encoding="utf-8", newline=""))
        )

        def write(lines: str) -> None:
            with _no_interrupt():
                file.write(lines)
                file.flush()

        yield write


@contextmanager
def _no_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # where no signal arrives
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        raise KeyboardInterrupt


# Progress with time left, on stderr: a bar on a terminal, a line now and then elsewhere.


# Where there is no terminal (a log file, a build): seconds until the first line, and between lines.
FIRST_LINE = 5.0
LINE_EVERY = 15.0


@contextmanager
def showing_progress(*, is_quiet: bool = False) -> Iterator[Callable[..., None]]:
    """A function to call with the name of the stage, how much of it is done, and of how much.

    A fourth argument says how it goes: ``loss 3.21``.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if is_quiet or not console.is_terminal:
        yield (lambda *_: None) if is_quiet else _lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bar:
        tasks = {}

        def show(stage: str, done: int, total: int, note: str = "") -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total, note=note)
            bar.update(tasks[stage], completed=done, total=total, note=note)

        yield show


def _lines() -> Callable[..., None]:
    started: dict[str, tuple[float, int]] = {}
    due = time.monotonic() + min(FIRST_LINE, LINE_EVERY)

    def show(stage: str, done: int, total: int, note: str = "") -> None:
        nonlocal due
        now = time.monotonic()
        begin, first = started.setdefault(stage, (now, done))
        if now < due and done < total:
            return
        due = now + LINE_EVERY
        left = (now - begin) * (total - done) / (done - first) if done > first else None
        rest = f", {left:.0f} s left" if left is not None and done < total else ""
        how = f", {note}" if note else ""
        print(f"{stage}: {done}/{total}{rest}{how}", file=sys.stderr, flush=True)

    return show
