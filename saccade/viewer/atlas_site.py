"""An atlas as files that need no server: a folder with one page a head, or one head as one file.

The viewer's own modules draw them. A browser loads no module from a disk, so the folder has one
script that holds all modules, and every page loads it; a page adds little to the JSON it draws.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from saccade.interp.atlas.head_page import AtlasPages
from saccade.store.atomic import atomic_file, atomic_folder
from saccade.store.folder import refuse_other_files
from saccade.viewer.export import (
    SavedAnswer,
    json_bytes,
    offline_page,
    page_of_site,
    shared_files,
    status_of_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from saccade.interp.atlas.atlas import Atlas

HEADS = "heads"
"""The folder of the pages of heads."""


def write_site(
    folder: str | Path, atlas: Atlas, *, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write a folder of pages: ``index.html`` with all heads, ``heads/12.3.html`` for each.

    The index finds heads by a token among the first 20 of each head, by role and by range of a
    metric; likeness and the comparison of sources need ``saccade view``.

    Args:
        folder: replaced as a whole if it holds such pages already.
        progress: called with the number of heads that are written and of all.

    Raises:
        StoreError: the folder holds something else.
    """
    refuse_other_files(folder, {"index.html", HEADS, *shared_files()})
    pages = AtlasPages(atlas)
    overview = pages.overview()
    names = [head["name"] for head in overview["heads"]]
    with atomic_folder(Path(folder)) as temporary:
        (temporary / HEADS).mkdir(parents=True)
        for name, text in shared_files().items():
            (temporary / name).write_text(text, encoding="utf-8")
        site = {"head": "NAME.html", "overview": "../index.html", "names": names}
        for number, (row, (layer, head)) in enumerate(
            zip(overview["heads"], atlas.sites, strict=True)
        ):
            page = pages.page(layer, head)
            for kind in ("promotes", "suppresses"):  # what the index finds heads by
                row[kind] = [[each["text"], each["share"]] for each in page["does"][kind]]
            state, answers = _one_head(page)
            html = page_of_site(state, answers, site, folder="../", title=_title(page))
            _write(temporary / HEADS / f"{page['name']}.html", html)
            if progress is not None:
                progress(number + 1, len(names))
        answers = [
            _status(),
            SavedAnswer("atlas", {}, json_bytes({"atlas": overview, "error": "", "hint": ""})),
        ]
        site = {"head": f"{HEADS}/NAME.html", "overview": None, "names": names}
        title = f"{pages.model}: atlas of {len(names)} heads"
        html = page_of_site({"screen": "atlas"}, answers, site, folder="", title=title)
        _write(temporary / "index.html", html)


def write_head_file(path: str | Path, atlas: Atlas, layer: int, head: int) -> None:
    """Write the page of one head as one HTML file.

    Raises:
        UsageError: the atlas has no such head.
    """
    page = AtlasPages(atlas).page(layer, head)
    state, answers = _one_head(page)
    with atomic_file(Path(path)) as temporary:
        _write(temporary, offline_page(state, answers, title=_title(page)))


def _one_head(page: dict[str, Any]) -> tuple[dict[str, Any], list[SavedAnswer]]:
    name = page["name"]
    state = {"screen": "atlas", "head": name}
    return state, [_status(), SavedAnswer(f"atlas/{name}", {}, json_bytes(page))]


def _title(page: dict[str, Any]) -> str:
    return f"{page['model']}: head {page['name']}"


def _status() -> SavedAnswer:
    return SavedAnswer("status", {}, json_bytes(status_of_file()))


def _write(path: Path, html: str) -> None:
    path.write_text(html, encoding="utf-8", errors="replace")
