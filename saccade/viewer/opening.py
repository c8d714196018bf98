"""Open the model and its lenses while the page is already in sight."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from saccade.errors import LensError
from saccade.viewer.config import ViewConfig
from saccade.viewer.worker import Progress

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.collection import Lenses

DEFAULT_NAME = "default"


class Opened(NamedTuple):
    """A model, its lenses by name, and what went wrong with lenses that nobody named."""

    model: LanguageModel
    lenses: dict[str, Lenses]
    problem: LensError | None = None


def open_model_and_lenses(config: ViewConfig, progress: Progress) -> Opened:
    """Open what was asked for; each step is told, since the first ones take seconds."""
    total = 2 + max(1, len(config.lenses))
    progress("starts torch", 0, total)
    from saccade.heads import DEFAULT_MODEL, open_model
    from saccade.lenses.collection import load_lenses

    name = DEFAULT_MODEL if config.model is None else config.model
    progress(f"opens {Path(name).name}", 1, total)
    model = open_model(name, trust_remote_code=config.trust_remote_code)
    lenses: dict[str, Lenses] = {}
    for place, named in enumerate(config.lenses):
        progress(f"reads lenses {lens_name(named, lenses)}", 2 + place, total)
        lenses[lens_name(named, lenses)] = load_lenses(named, model)
    problem = None
    if not config.lenses:
        progress("reads lenses", 2, total)
        try:
            lenses[DEFAULT_NAME] = load_lenses(None, model)
        except LensError as error:  # the model can be looked at without; the page says how to fit
            problem = error
    return Opened(model, lenses, problem)


def lens_name(named: str, taken: dict[str, Lenses]) -> str:
    """What lenses are called on the page: the last part of their path, made unique.

    >>> lens_name("here/closed", {}), lens_name("there/closed/", {"closed": None})
    ('closed', 'closed-2')
    """
    name = Path(named).name or named
    number = 2
    unique = name
    while unique in taken:
        unique, number = f"{name}-{number}", number + 1
    return unique
