"""The page in one file, with answers in it: for offline use, and for notebooks.

The modules are put into an import map as ``data:`` addresses, so the file needs no build step and
the modules stay as they are but for the names of what they import.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

PAGE_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "woff2": "font/woff2",
}
MAIN = "main.js"
_STYLE = re.compile(r'<link rel="stylesheet" href="/page/([\w-]+\.css)"\s*/?>')
_ICON = re.compile(r'<link rel="icon"[^>]*href="/page/([\w-]+\.svg)"[^>]*>')
_SCRIPT = re.compile(r'<script type="module" src="/page/main\.js"></script>')
_IMPORT = re.compile(r'(\bfrom\s*|\bimport\s*)"\./([\w-]+\.js)"')


class Kept(NamedTuple):
    """A question and its answer, as JSON."""

    route: str
    question: Mapping[str, Any]
    answer: bytes


def page_file(name: str) -> bytes | None:
    """A file of the page by its name; None if there is none of that name."""
    folder = files("saccade.viewer") / "page"
    if name.rpartition(".")[2] not in PAGE_TYPES:
        return None
    for file in folder.iterdir():
        if file.name == name and file.is_file():  # a name that is listed leads nowhere else
            return file.read_bytes()
    return None


def offline_page(state: Mapping[str, Any], kept: Sequence[Kept], *, title: str = "") -> str:
    """One HTML file that begins with ``state`` and holds these answers."""
    data = _packed(state, kept)
    modules = _modules()
    imports = json.dumps({"imports": {f"saccade/{name}": url for name, url in modules.items()}})
    start = f'import "saccade/{MAIN}";'
    # Hashes: of all that a page can run inline, these two and no other.
    allowed = " ".join(f"'sha256-{_sha256(each)}'" for each in (imports, start))
    policy = (
        f"default-src 'none'; script-src {allowed} data:; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    html = _text("index.html")
    html = _STYLE.sub(lambda found: f"<style>{_text(found[1])}</style>", html)
    html = _ICON.sub(lambda found: _icon(found[1]), html)
    scripts = (
        f'<script type="application/json" id="saccade-data">{data}</script>'
        f'<script type="importmap">{imports}</script><script type="module">{start}</script>'
    )
    html = _SCRIPT.sub(lambda _: scripts, html)
    assert "/page/" not in html.replace(data, ""), "index.html names a file in another way"
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    html = re.sub(r"(<meta charset=[^>]*>)", lambda found: found[1] + meta, html, count=1)
    if title:
        html = re.sub(r"<title>.*?</title>", lambda _: f"<title>{_escaped(title)}</title>", html)
    return html


def _packed(state: Mapping[str, Any], kept: Sequence[Kept]) -> str:
    answers = ",".join(
        f'{{"route":{json.dumps(each.route)},"question":{json.dumps(dict(each.question))},'
        f'"answer":{each.answer.decode("utf-8")}}}'
        for each in kept
    )
    whole = f'{{"state":{json.dumps(dict(state))},"answers":[{answers}]}}'
    # What is in a script is not unescaped: a token that says </script> must not end it.
    return whole.replace("<", "\\u003c")


def _modules() -> dict[str, str]:
    """Every module that is needed, as an address that holds it."""
    found: dict[str, str] = {}
    waiting = [MAIN]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        text = _text(name)
        waiting += [each[2] for each in _IMPORT.finditer(text)]
        # In a data: address there is no folder that "./" could be relative to.
        text = _IMPORT.sub(lambda each: f'{each[1]}"saccade/{each[2]}"', text)
        packed = base64.b64encode(text.encode()).decode("ascii")
        found[name] = f"data:text/javascript;base64,{packed}"
    return found


def _text(name: str) -> str:
    content = page_file(name)
    assert content is not None, f"the page names {name}, which is not there"
    return content.decode("utf-8")


def _icon(name: str) -> str:
    packed = base64.b64encode(_text(name).encode()).decode("ascii")
    return f'<link rel="icon" href="data:image/svg+xml;base64,{packed}">'


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
