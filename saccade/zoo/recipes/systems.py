"""Every system that the project set out to build: where it is, and what it reached."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from saccade.zoo.recipes.recipe import Facts
from saccade.zoo.recipes.results import Row

GROUPS = {
    "Z": "Reading the heads of a language model",
    "R": "Recurrent cells",
    "T": "Training and diagnosing sequences",
    "L": "Language models",
    "S": "Sequence to sequence",
    "A": "Attention",
    "V": "Visual attention",
    "M": "Readers and memory",
    "X": "Transformer",
    "E": "Metrics and pictures",
}
"""By the letter with which a number begins, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class System:
    """One system."""

    number: str
    name: str
    files: tuple[str, ...]
    """Where it is, from the package's folder; the first is the one to open."""
    recipes: tuple[str, ...] = ()
    """Those that train it, or that it has a part in."""
    commands: tuple[str, ...] = ()
    """Those that show it."""
    published: str = ""
    """A printed number that belongs to no single recipe."""
    note: str = ""

    @property
    def group(self) -> str:
        """What kind of system it is."""
        return GROUPS[self.number[0]]


class Standing(NamedTuple):
    """A recipe of a system, and how far it came."""

    recipe: str
    metric: str
    published: float | None
    wanted: float | None
    ours: float | None
    """None where no run has been put into the results yet."""


def all_systems() -> list[System]:
    """Every system, by its number."""
    text = files("saccade.zoo.recipes").joinpath("data/systems.json").read_text(encoding="utf-8")
    return [System(**{key: _frozen(held) for key, held in row.items()}) for row in json.loads(text)]


def standings(
    system: System, recipes: Mapping[str, Facts], results: Sequence[Row]
) -> list[Standing]:
    """What the recipes of a system reached, beside what was published."""
    ours = {row.recipe: row.value for row in results}
    found = [recipes[name] for name in system.recipes if name in recipes]
    return [
        Standing(each.name, each.metric, each.published, each.at_least, ours.get(each.name))
        for each in found
    ]


def as_dict(system: System, found: Sequence[Standing]) -> dict[str, Any]:
    """A system as JSON can hold it."""
    return {
        "number": system.number,
        "group": system.group,
        "name": system.name,
        "files": list(system.files),
        "recipes": [each._asdict() for each in found],
        "commands": list(system.commands),
        "published": system.published,
        "note": system.note,
    }


def _frozen(held: Any) -> Any:
    return tuple(held) if isinstance(held, list) else held
