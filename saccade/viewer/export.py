"""Export: the viewer's page and its JSON in one HTML file that works offline.

`read --html`, `trace --html`, the output of a notebook cell, `saccade.show` and the page that the
viewer saves are all written here. Python draws nothing: the page's own modules draw the JSON of a
reading or of traces, as they draw the answers of the server.

This module is in the folder of the page, but every other part of the package may import it: it
uses only JSON and the page's files, no model code, so that readings and traces can show themselves.

The modules become ``data:`` URLs in an import map, so the file needs no build step; only the names
in their import lines change.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from saccade import __version__
from saccade.errors import UsageError

if TYPE_CHECKING:
    from typing import Protocol

    class HasJson(Protocol):
        """A reading, or a trace of any kind."""

        def to_dict(self) -> dict[str, Any]:
            """All of it, ready for JSON."""
            ...


PAGE_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}
MAIN = "main.js"
_START = f'import "saccade/{MAIN}";'
_STYLE = re.compile(r'<link rel="stylesheet" href="/page/([\w-]+\.css)"\s*/?>')
_ICON = re.compile(r'<link rel="icon"[^>]*href="/page/([\w-]+\.svg)"[^>]*>')
_SCRIPT = re.compile(r'<script type="module" src="/page/main\.js"></script>')
_IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"\./([\w-]+\.js)"')


# The page and its answers as one file.


class SavedAnswer(NamedTuple):
    """A question and its answer, as JSON."""

    route: str
    question: Mapping[str, Any]
    answer: bytes


def page_file(name: str) -> bytes | None:
    """A file of the page by its name; None if there is no such file."""
    folder = files("saccade.viewer") / "page"
    if name.rpartition(".")[2] not in PAGE_TYPES:
        return None
    for file in folder.iterdir():
        if file.name == name and file.is_file():  # only listed names: no path leads outside
            return file.read_bytes()
    return None


def offline_page(
    state: Mapping[str, Any], answers: Sequence[SavedAnswer], *, title: str = ""
) -> str:
    """One HTML file that starts in ``state`` and contains these answers."""
    imports, start = _import_map(), _START
    # Hashes: the page may run these two inline scripts and no other.
    html = _STYLE.sub(lambda found: f"<style>{_text(found[1])}</style>", _text("index.html"))
    return _with_data(
        html,
        _inlined(state, answers),
        f'<script type="importmap">{imports}</script><script type="module">{start}</script>',
        _policy(f"{_hashes(imports, start)} data:", "'unsafe-inline'"),
        title,
    )


def shared_files() -> dict[str, str]:
    """The style sheet and the modules of the page, for a folder of pages that load them."""
    styles = "\n".join(_text(name) for name in _STYLE.findall(_text("index.html")))
    # A module cannot be loaded from a file: this script adds the import map and starts the page.
    scripts = json.dumps([["importmap", _import_map()], ["module", _START]])
    script = (
        f"for (const [type, text] of {scripts})\n"
        '  document.head.append(Object.assign(document.createElement("script"), { type, text }));\n'
    )
    return {"page.css": styles, "page.js": script}


def page_of_site(
    state: Mapping[str, Any],
    answers: Sequence[SavedAnswer],
    site: Mapping[str, Any],
    *,
    folder: str,
    title: str,
) -> str:
    """An HTML file that loads the `shared_files` of ``folder``, such as ``../``.

    Args:
        site: the addresses of the other files: ``head`` with NAME in it, ``names``, ``overview``.
    """
    links = iter([f'<link rel="stylesheet" href="{folder}page.css">'])
    html = _STYLE.sub(lambda _: next(links, ""), _text("index.html"))
    allowed = f"'self' file: {_hashes(_import_map(), _START)} data:"
    return _with_data(
        html,
        _inlined(state, answers, site),
        f'<script defer src="{folder}page.js"></script>',
        _policy(allowed, "'self' file: 'unsafe-inline'"),
        title,
    )


def _with_data(html: str, data: str, scripts: str, policy: str, title: str) -> str:
    html = _ICON.sub(lambda found: _icon(found[1]), html)
    scripts = f'<script type="application/json" id="saccade-data">{data}</script>{scripts}'
    html = _SCRIPT.sub(lambda _: scripts, html)
    assert "/page/" not in html.replace(data, ""), "index.html refers to a file with an unknown tag"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    html = re.sub(r"(<meta charset=[^>]*>)", lambda found: found[1] + meta, html, count=1)
    if title:
        escaped = escape(title.encode("utf-8", errors="replace").decode("utf-8"))
        html = re.sub(r"<title>.*?</title>", lambda _: f"<title>{escaped}</title>", html)
    return html


def _policy(scripts: str, styles: str) -> str:
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def _hashes(*texts: str) -> str:
    return " ".join(f"'sha256-{_sha256(each)}'" for each in texts)


@cache
def _import_map() -> str:
    return json.dumps({"imports": {f"saccade/{name}": url for name, url in _modules().items()}})


def json_bytes(answer: Any) -> bytes:
    r"""JSON as UTF-8; NaN and infinity become null.

    >>> json_bytes({"a": [1.5, float("nan")], "b": "\u00e4"})
    b'{"a":[1.5,null],"b":"\xc3\xa4"}'
    """
    try:
        text = json.dumps(answer, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(answer), ensure_ascii=False, separators=(",", ":"))
    # A token may be half of a character, which UTF-8 cannot encode.
    return text.encode("utf-8", errors="replace")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _inlined(
    state: Mapping[str, Any],
    answers: Sequence[SavedAnswer],
    site: Mapping[str, Any] | None = None,
) -> str:
    items = ",".join(
        f'{{"route":{json.dumps(each.route)},"question":{json.dumps(dict(each.question))},'
        f'"answer":{each.answer.decode("utf-8")}}}'
        for each in answers
    )
    others = "" if site is None else f'"site":{json.dumps(dict(site))},'
    whole = f'{{"state":{json.dumps(dict(state))},{others}"answers":[{items}]}}'
    # HTML does not unescape the text of a script: the token "</script>" must not end it.
    return whole.replace("<", "\\u003c")


def _modules() -> dict[str, str]:
    """Every module that the page imports, as a data: URL."""
    found: dict[str, str] = {}
    waiting = [MAIN]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        text = _text(name)
        waiting += [each[2] for each in _IMPORT.finditer(text)]
        # A data: URL has no folder that "./" could be relative to.
        text = _IMPORT.sub(lambda each: f'{each[1]}"saccade/{each[2]}"', text)
        found[name] = f"data:text/javascript;base64,{_base64(text.encode())}"
    return found


def _text(name: str) -> str:
    content = page_file(name)
    assert content is not None, f"the page refers to {name}, which does not exist"
    return content.decode("utf-8")


def _icon(name: str) -> str:
    return f'<link rel="icon" href="data:image/svg+xml;base64,{_base64(_text(name).encode())}">'


def _sha256(text: str) -> str:
    return _base64(hashlib.sha256(text.encode()).digest())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


# A reading, or traces, as such a file.

LENS = "lens"  # a reading has no name for its lenses
TITLE = 80  # characters of a prompt or a title in the title of a file
DIGITS = 4  # decimals of a weight; more cannot be seen


def reading_page(reading: Mapping[str, Any]) -> str:
    """One HTML file from the JSON of a reading: a map of all heads, and a card for each."""
    question: dict[str, Any] = {"text": reading["text"]}
    state = {"screen": "head", "text": reading["text"]}
    if reading["position"] != len(reading["tokens"]) - 1:
        state["at"] = str(reading["position"])
        question["position"] = reading["position"]
    rows: dict[int, int] = {}
    for each in reading["heads"]:
        rows[each["layer"]] = rows.get(each["layer"], 0) + 1
    model = {
        "name": reading["model"],
        "layers": [{"layer": layer, "n_heads": n} for layer, n in rows.items()],
        "n_heads": len(reading["heads"]),
        "d_vocab": 0,
        "max_tokens": len(reading["tokens"]),
    }
    answers = [
        SavedAnswer("status", {}, json_bytes(status_of_file(model))),
        SavedAnswer("reading", question, json_bytes({**reading, "lens": LENS})),
    ]
    return offline_page(state, answers, title=f"{reading['model']}: {reading['text'][:TITLE]}")


def traces_page(traces: Sequence[Mapping[str, Any]], *, title: str = "") -> str:
    """One HTML file from the JSON of one trace or several, below each other.

    >>> trace = {"kind": "attention", "title": "", "steps": ["a"], "memory": ["</script>"]}
    >>> page = traces_page([{**trace, "views": [], "weights": [[1.0]], "meta": {}}], title="a <b>")
    >>> "<title>a &lt;b&gt;</title>" in page, page.count("</script>")
    (True, 3)
    """
    title = title or next((each["title"] for each in traces if each["title"]), "trace")
    answers = [
        SavedAnswer("status", {}, json_bytes(status_of_file(None))),
        SavedAnswer("trace", {}, json_bytes([_compact(each) for each in traces])),
    ]
    return offline_page({"screen": "traces"}, answers, title=title[:TITLE])


def status_of_file(model: dict[str, Any] | None = None) -> dict[str, Any]:
    """The answer of `status` for a file, which has no server."""
    return {
        "version": __version__,
        "state": "none" if model is None else "ready",
        "model": model,
        "lenses": [] if model is None else [LENS],
        "residual_lenses": [],
        "opening": None,
        "job": None,
        "waiting": 0,
        "problem": None,
        "word_lists": [],
        "roles": [],
        "examples": [],
    }


def _compact(trace: Mapping[str, Any]) -> dict[str, Any]:
    """A trace with rounded weights and its pictures as PNG: a twentieth of the size."""
    pictures = {
        name: [_png(each) for each in row] for name, row in trace.get("pictures", {}).items()
    }
    image = {"image": _png(trace["image"]), "pictures": pictures} if "image" in trace else {}
    return {name: _rounded(value) for name, value in trace.items()} | image


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def _png(picture: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Rows of numbers from 0 to 1, grey or colour, as a PNG file in a data: URL."""
    height, width = len(picture), len(picture[0])
    is_colour = isinstance(picture[0][0], list)
    # Each line begins with its filter type; 0 is none.
    lines = b"".join(b"\0" + _levels(chain(*row) if is_colour else row) for row in picture)
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if is_colour else 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    file = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    address = f"data:image/png;base64,{_base64(file)}"
    return {"png": address, "height": height, "width": width, "is_grey": not is_colour}


def _levels(values: Iterable[float]) -> bytes:
    return bytes(round(255 * min(1.0, max(0.0, value))) for value in values)


# The output of a notebook cell.

HEIGHT = 720  # pixels in a notebook; the rest scrolls
# A page in a frame takes light or dark from the frame; here from the theme of the notebook.
_THEMES = (
    "<style>"
    "[data-jp-theme-light=true] .saccade,.vscode-light .saccade{color-scheme:light}"
    "[data-jp-theme-light=false] .saccade,.vscode-dark .saccade{color-scheme:dark}"
    "</style>"
)


@dataclass(frozen=True)
class Shown:
    """A page that a notebook displays, and that can be saved."""

    html: str
    height: int = HEIGHT

    def _repr_html_(self) -> str:
        # In a frame, so that its styles and scripts do not mix with the notebook's. In single
        # quotes, since a page has many double ones.
        page = escape(self.html, quote=False).replace("'", "&#39;")
        return (
            f'{_THEMES}<iframe class="saccade" title="saccade" width="100%" height="{self.height}" '
            'style="border:0" sandbox="allow-scripts allow-downloads allow-popups" '
            f"srcdoc='{page}'></iframe>"
        )

    def save(self, path: str | Path) -> None:
        """Write it as one file that works offline."""
        from saccade.store.atomic import atomic_file

        with atomic_file(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8")


def show(what: HasJson | Sequence[HasJson], *, height: int = HEIGHT) -> Shown:
    """Draw a reading, a trace or several traces as the viewer does.

    >>> import torch
    >>> from saccade import Trace
    >>> trace = Trace(kind="attention", steps=("a",), memory=("<b>",), weights=torch.ones(1, 1))
    >>> "srcdoc=" in show(trace)._repr_html_()
    True
    """
    several = list(what) if isinstance(what, Sequence) else [what]
    found = [each.to_dict() for each in several if hasattr(each, "to_dict")]
    if len(found) == len(several) == 1 and "prediction" in found[0]:
        return Shown(reading_page(found[0]), height)
    if not found or len(found) < len(several) or not all("steps" in each for each in found):
        raise UsageError(
            f"cannot show {type(what).__name__}", hint="give a reading, a trace or several traces"
        )
    return Shown(traces_page(found), height)
