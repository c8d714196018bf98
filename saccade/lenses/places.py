"""Where lenses are kept and looked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from saccade.errors import LensError
from saccade.store import cache_dir, settled_folder

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


def default_lens_path(model: LanguageModel) -> Path:
    """Where the lenses of a model are when nobody says otherwise: in the cache, by its weights."""
    return cache_dir() / "lenses" / model.fingerprint


def find_lenses(named: str | Path | None, model: LanguageModel) -> Path:
    """The folder of the lenses that were asked for: a folder, a hub name, or the default place.

    Raises:
        LensError: there is nothing there; the hint says how to fit lenses.
    """
    fit = f"fit lenses with `saccade lens fit --model {model.name}`"
    if named is None:
        path = default_lens_path(model)
        if not os.path.isdir(settled_folder(path)):
            raise LensError(f"no lenses for {model.name} yet: {path} is not there", hint=fit)
        return path
    text, path = str(named), Path(named).expanduser()
    # A process killed while it replaced the folder leaves the old one where readers find it.
    if os.path.exists(settled_folder(path)):
        return path
    if isinstance(named, Path) or text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise LensError(f"no lenses at {text}: there is no such folder", hint=f"{fit} --out {text}")
    from saccade.lenses.hub import fetch_lenses

    return fetch_lenses(text)
