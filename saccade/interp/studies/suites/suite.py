"""What a suite is: items that others wrote, methods that are run on them, and a table of results.

A row of the table is one metric of one method on one data set, with a 95 % interval over items and
the published numbers beside it. A suite fits and chooses nothing on the items that it reports; what
it has to choose is chosen on training parts, and its notes say so.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from saccade.errors import TaskError
from saccade.interp.studies.fidelity.geometry import resampled
from saccade.interp.studies.roles.role import role_data

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much."""
Item = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class SuiteConfig:
    """Settings of a suite."""

    limit: Annotated[int, Ge(0)] = 0
    """Run at most this many items of each data set, drawn at random; 0 for all."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of what is drawn: items, controls, intervals."""


class Interval(NamedTuple):
    """A mean with its 95 % interval."""

    value: float
    low: float
    high: float


def interval(values: Float[Tensor, " item"], *, seed: int = 0) -> Interval:
    """The mean over items, with a percentile bootstrap (Efron, 1979); all metrics share the draws.

    >>> interval(torch.tensor([1.0, 1.0, 1.0]))
    Interval(value=1.0, low=1.0, high=1.0)
    """
    counts = resampled(len(values), seed=seed).double()
    means = counts @ values.double() / len(values)
    return Interval(*_bounded(means))


def interval_of(
    statistic: Callable[[Float[Tensor, " item"]], float], n: int, *, seed: int = 0
) -> Interval:
    """A statistic that is no mean, such as an AUROC, of how often each item is drawn."""
    values = [statistic(counts) for counts in resampled(n, seed=seed).double()]
    return Interval(*_bounded(torch.tensor(values, dtype=torch.double)))


def _bounded(values: Float[Tensor, " bootstrap"]) -> tuple[float, float, float]:
    """The first is of the items themselves, the others of draws."""
    low, high = values[1:].nanquantile(torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return float(values[0]), low, high


@dataclass(frozen=True, kw_only=True)
class Row:
    """One metric of one method on one data set."""

    data: str
    method: str
    metric: str
    value: float
    n: int
    """Items."""
    low: float | None = None
    high: float | None = None
    published: str = ""
    """The numbers that were published of this metric on these items, each with its source."""
    note: str = ""
    """What differs from the published test."""
    control: float | None = None
    """The same metric of a control that knows nothing of the item."""
    excess: float | None = None
    """The value minus that of the control, with the interval of this difference."""
    excess_low: float | None = None
    excess_high: float | None = None


def row(
    data: str,
    method: str,
    metric: str,
    found: Interval,
    n: int,
    *,
    published: str = "",
    note: str = "",
) -> Row:
    """A row with an interval."""
    return Row(
        data=data,
        method=method,
        metric=metric,
        value=found.value,
        low=found.low,
        high=found.high,
        n=n,
        published=published,
        note=note,
    )


def beside_control(
    found: Row,
    values: Float[Tensor, " item"],
    control: Float[Tensor, " item"],
    *,
    seed: int = 0,
) -> Row:
    """A row with the mean of a control of the same items, and the paired difference."""
    over = interval(values - control, seed=seed)
    return replace(
        found,
        control=float(control.double().mean()),
        excess=over.value,
        excess_low=over.low,
        excess_high=over.high,
    )


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """The table of a suite."""

    suite: str
    model: str
    about: str
    source: str
    """Of the data, with licence."""
    seed: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """What holds for the whole table: items left out, what was chosen where."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Method or data set -> why it was not run."""

    def value(self, data: str, method: str, metric: str) -> float:
        """The value of one row."""
        for each in self.rows:
            if (each.data, each.method, each.metric) == (data, method, metric):
                return each.value
        raise KeyError((data, method, metric))

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self) | {"rows": [asdict(each) for each in self.rows]}

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


class Found(NamedTuple):
    """What a suite found: rows, and what has to be said about them."""

    rows: Sequence[Row]
    notes: Sequence[str] = ()
    left_out: Mapping[str, str] = {}


class Suite(ABC):
    """A benchmark: where its items are, what they need, and how a model is run on them."""

    name: ClassVar[str]
    about: ClassVar[str]
    """One line."""
    source: ClassVar[str]
    """Of the data, with licence."""
    folder: ClassVar[str]
    """Of its data set in the folder with data sets."""
    fields: ClassVar[frozenset[str]]
    """What every item has; a file of a user's own items is known by them."""

    @abstractmethod
    def read(self, folder: Path) -> Mapping[str, Sequence[Item]]:
        """The items of each data set in the folder.

        Raises:
            TaskError: a file is missing or not as expected.
        """

    @abstractmethod
    def run(
        self,
        model: LanguageModel,
        items: Mapping[str, Sequence[Item]],
        config: SuiteConfig,
        progress: Progress | None = None,
    ) -> Found:
        """Run a model on items of one or more data sets."""

    def fault(self, item: Item) -> str | None:
        """What is wrong with an item that has all fields, such as ``prompt is no text``."""
        del item
        return None

    def find(self, data: str | Path | None = None) -> Path:
        """The folder of the data set.

        Raises:
            TaskError: it is not there.
        """
        folder = role_data(self.folder, data)
        if folder is None:
            raise TaskError(
                f"the suite {self.name} needs the data set {self.folder}, which is not there",
                hint=f"name the folder that holds {self.folder}/ with --data or SACCADE_DATA "
                f"(source: {self.source})",
            )
        return folder


def read_items(
    path: Path, fields: frozenset[str], fault: Callable[[Item], str | None] | None = None
) -> list[Item]:
    """Items of a file: a JSON list, an object with a list ``items``, or JSONL.

    Args:
        fault: what else may be wrong with an item (`Suite.fault`).

    Raises:
        TaskError: the file is broken, or an item lacks a field; the message has its number.
    """
    items = _parsed(path)
    for number, item in enumerate(items, 1):
        if not isinstance(item, Mapping):
            raise TaskError(
                f"{path}: item {number} is no JSON object: {str(item)[:60]!r}",
                hint=f"an item has the fields {', '.join(sorted(fields))}",
            )
        missing = sorted(
            name for name in fields if item.get(name) in (None, "", []) and item.get(name) != 0
        )
        if missing:
            raise TaskError(
                f"{path}: item {number} has no {' and no '.join(missing)}",
                hint=f"an item has the fields {', '.join(sorted(fields))}",
            )
        if fault is not None and (wrong := fault(item)) is not None:
            raise TaskError(
                f"{path}: item {number}: {wrong}", hint="correct the item, or leave it out"
            )
    if not items:
        raise TaskError(f"{path} has no items", hint="give a file with at least one item")
    return items


def _parsed(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TaskError(f"cannot read {path}: {error}", hint="give a UTF-8 text file") from error
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return [_line(path, at, line) for at, line in _lines(text)]
    if isinstance(whole, Mapping):
        listed = whole.get("items", [whole])
        return listed if isinstance(listed, list) else [whole]
    return whole if isinstance(whole, list) else [whole]


def _lines(text: str) -> list[tuple[int, str]]:
    return [(at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]


def _line(path: Path, at: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TaskError(
            f"{path}: line {at} is no JSON: {error}", hint="write one JSON object a line"
        ) from error
