"""The log of a run: one JSON object a line, for every so many steps and for every validation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from saccade.distributed import Processes
from saccade.errors import MissingPackageError, StoreError, TrainingError
from saccade.store.atomic import atomic_file, write_refused
from saccade.store.schema import conform, parse_json
from saccade.zoo.training.job import LossOut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


N = "n"


@dataclass(frozen=True, kw_only=True)
class _Line:
    """The part of a line that is read again."""

    step: Annotated[int, Ge(0)]
    loss: float | None = None
    validation: dict[str, float | None] = field(default_factory=dict)


LINE = tuple(each.name for each in fields(_Line))


class Means(NamedTuple):
    """What steps were like on the average."""

    values: dict[str, float]
    n: int
    """Over how many units."""
    losses: tuple[float, ...] = ()
    """Of each step."""


class Window:
    """The steps since the last line of the log; their numbers stay on the device until it is due.

    A number fetched from a GPU at every step would make it wait at every step.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._names: list[str] = []
        self._rows: list[Tensor] = []  # [name], each times its n; the last is n itself

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, out: LossOut, norm: Tensor, *, n: int) -> None:
        """Note a step: its loss and what else its job logs, with the weight of ``n`` units."""
        numbers = {**out.logged, "loss": out.loss, "gradient_norm": norm}
        self._names = _ordered(numbers)
        device = out.loss.device
        values = [
            torch.as_tensor(numbers[name], device=device).detach().float()
            for name in self._names[:-1]
        ]
        self._rows.append(torch.stack([*values, torch.ones((), device=device)]) * n)

    def means(self, *, last_step: int) -> Means:
        """The mean of each number over all units of all processes; refuses what is not finite.

        Args:
            last_step: the number of the latest step, to name the one that went wrong.
        """
        if not self._rows:
            return Means({}, 0)
        sums = self._sums().double()
        for name in ("loss", "gradient_norm"):
            column = sums[:, self._names.index(name)] / sums[:, -1]
            wrong = (~column.isfinite()).nonzero()
            if len(wrong):
                at = int(wrong[0])
                raise _not_finite(name, float(column[at]), last_step - len(sums) + 1 + at)
        means = (sums.sum(0) / sums[:, -1].sum()).tolist()
        losses = sums[:, self._names.index("loss")] / sums[:, -1]
        return Means(
            dict(zip(self._names[:-1], means[:-1], strict=True)),
            int(sums[:, -1].sum()),
            tuple(losses.tolist()),
        )

    def clear(self) -> None:
        """Begin the next line."""
        self._rows = []

    def tensors(self) -> dict[str, Tensor]:
        """The steps of all processes as named columns, for a checkpoint."""
        if not self._rows:
            return {}
        return dict(zip(self._names, self._sums().unbind(1), strict=True))

    def restore(self, tensors: Mapping[str, Tensor], *, device: torch.device) -> None:
        """Put back what `tensors` gave: in the first process, for the others are in it."""
        if not tensors:
            return
        self._names = _ordered(tensors)
        rows = torch.stack([tensors[name] for name in self._names], dim=1).to(device)
        self._rows = list((rows if self._processes.is_first else torch.zeros_like(rows)).unbind(0))

    def _sums(self) -> Float[Tensor, "step name"]:
        rows = torch.stack(self._rows)
        self._processes.add_up([rows])
        return rows.cpu()


def _ordered(names: Iterable[str]) -> list[str]:
    """Always the same order, whatever a file or a job makes of it."""
    return ["loss", "gradient_norm", *sorted({*names} - {"loss", "gradient_norm", N}), N]


def _not_finite(name: str, value: float, step: int) -> TrainingError:
    what = name.replace("_", " ")
    return TrainingError(
        f"the {what} is {value} at step {step}",
        hint="the last checkpoint is kept; a lower learning_rate, a longer warmup or a smaller "
        "clip may help, in a new run",
    )


class Log:
    """Appends lines to a file, each whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; what JSON has no number for is null."""
        whole = json.dumps(finite(line), ensure_ascii=False, allow_nan=False)
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(whole + "\n")
        except OSError as error:
            raise write_refused(self._path, error) from error

    def cut(self, *, step: int, validated: int) -> None:
        """Forget the steps after ``step`` and the validations after that of step ``validated``."""
        if not self._path.exists():
            return
        kept = [
            json.dumps(line, ensure_ascii=False)
            for line in read_log(self._path)
            if line["step"] <= (validated if "validation" in line else step)
        ]
        with atomic_file(self._path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one that a killed process left unfinished does not count."""
    lines = []
    try:
        texts = path.read_bytes().splitlines()
    except OSError as error:
        raise TrainingError(f"{path} cannot be read: {error}", hint="check the path") from error
    for number, text in enumerate(texts, start=1):
        try:
            line = parse_json(text, where=f"line {number} of {path}")
            told = {name: line[name] for name in LINE if name in line} if line else line
            conform(_Line, told, where=f"line {number} of {path}")
        except (StoreError, TypeError):
            if number == len(texts):
                break
            raise
        lines.append(line)
    return lines


def finite(value: Any) -> Any:
    """JSON has no number for NaN and infinity: null stands for them."""
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


# The log of a run as a picture: the loss, and below it the validation's score.

WIDTH, HEIGHT = 8.0, 3.0  # inches, of one panel


def save_curves(
    path: Path, lines: Sequence[Mapping[str, Any]], *, score: str, title: str = ""
) -> None:
    """Write a PNG of a log's lines.

    Args:
        score: which of the validation's scores to draw.
    """
    figure = draw_curves(lines, score=score, title=title)
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


def draw_curves(lines: Sequence[Mapping[str, Any]], *, score: str, title: str = "") -> Figure:
    """The same as a matplotlib figure, for notebooks."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            "drawing a curve needs the package 'matplotlib'", hint="pip install 'saccade[plot]'"
        ) from error
    steps = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    scores = [
        (line["step"], line["validation"].get(score)) for line in lines if "validation" in line
    ]
    panels = [("loss", steps, "-")] if steps else []
    panels += [(f"validation: {score}", scores, "o-")] if scores else []
    n_panels = max(1, len(panels))
    figure = Figure(figsize=(WIDTH, HEIGHT * n_panels), layout="constrained")
    # A canvas of its own instead of pyplot's: no window is opened and nothing stays behind.
    FigureCanvasAgg(figure)
    axes = figure.subplots(n_panels, 1, sharex=True, squeeze=False)[:, 0]
    for place, (name, points, style) in zip(axes, panels, strict=False):
        _panel(place, name, points, style)
    axes[-1].set_xlabel("step")
    if title:
        figure.suptitle(title, fontsize="medium", parse_math=False)
    return figure


def _panel(axes: Axes, name: str, points: Sequence[tuple[int, Any]], style: str) -> None:
    known = [(step, value) for step, value in points if value is not None]
    axes.plot(*zip(*known, strict=True), style, linewidth=1, markersize=3) if known else None
    axes.set_ylabel(name, parse_math=False)
    axes.grid(alpha=0.3)
