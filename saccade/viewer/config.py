"""What a viewer is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ViewConfig:
    """What is shown: a model with its lenses, folders of runs and traces."""

    model: str | None = None
    """A hub name or a folder; the small default without it."""
    lenses: tuple[str, ...] = ()
    """Folders or hub names; where `saccade lens fit` puts them without."""
    folders: tuple[Path, ...] = ()
    """Runs, saved traces, or folders of such."""
    has_model: bool = True
    """False shows runs and traces only."""
    trust_remote_code: bool = False
    """True runs the Python code that the model brings with it."""
