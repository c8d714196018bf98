"""A viewer of the little model in a real browser.

saccade is imported inside the fixtures only: the checker of shapes must be in place before it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

TEXT = "Once upon a time there was a little girl named"
OTHER = "Once upon a time there was a little boy named"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WAITED = 20_000  # milliseconds: a laden machine is no failure


@dataclass(frozen=True)
class Viewed:
    """A running viewer."""

    address: str
    print_route: Callable[..., Any]
    """What `saccade view --print ROUTE --ask QUESTION` prints, as an object."""

    def link(self, **state: Any) -> str:
        """The address of a view."""
        parts = (f"{key}={quote(str(value), safe='')}" for key, value in state.items())
        return f"{self.address}#{'&'.join(parts)}"


@dataclass
class Seen:
    """What a page did that it should not have done."""

    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


def _trained_run(folder: Path) -> None:
    """As `saccade train` leaves one, without having trained."""
    folder.mkdir(parents=True)
    manifest = {
        "format": 1,
        "recipe": "adding-gru",
        "settings": {"length": 7},
        "command": "saccade train adding-gru",
        "score": "mse",
        "system": "SequenceReader",
        "n_weights": 50817,
        "versions": {},
        "commit": "",
        "began": "2026-01-01T00:00:00+00:00",
    }
    figures = {"recipe": "adding-gru", "metric": "mse", "value": 0.0013, "minutes": 0.67}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "figures.json").write_text(
        json.dumps({**figures, "evaluated": "2026-01-01"}), encoding="utf-8"
    )
    (folder / "kept.json").write_text("{}", encoding="utf-8")
    lines = [{"step": 50 * i, "epoch": 0, "loss": 1 / i} for i in range(1, 8)]
    lines += [{"step": 100 * i, "epoch": i, "validation": {"mse": 0.1 / i}} for i in (1, 2, 3)]
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")


def _saved_trace(folder: Path) -> None:
    import torch

    from saccade.trace.trace import Trace, save_trace

    weights = torch.softmax(torch.arange(2 * 3 * 5).view(2, 3, 5).sin() * 3, -1)
    trace = Trace(
        kind="attention",
        steps=("a", "dog", "<script>alert(1)</script>"),
        memory=("ein", "Hund", "läuft", "weg", "."),
        weights=weights,
        views=("0.0", "0.1"),
        title="two heads",
    )
    save_trace(folder, trace)


@pytest.fixture(scope="session")
def view_config(story_folder, lens_folders, atlas_folder, tmp_path_factory) -> Any:
    """The little model with two sets of lenses, an atlas, a run and a trace."""
    from saccade.viewer.worker import ViewConfig

    runs = tmp_path_factory.mktemp("watched")
    _trained_run(runs / "adding-gru")
    _saved_trace(runs / "heads")
    return ViewConfig(
        model=str(story_folder),
        lenses=tuple(map(str, lens_folders)),
        atlas=atlas_folder,
        folders=(runs,),
    )


@pytest.fixture(scope="session")
def print_route(view_config) -> Iterator[Callable[..., Any]]:
    """What `saccade view --print ROUTE --ask QUESTION` prints, with a model that stays open."""
    from saccade.viewer.app import answer_to
    from saccade.viewer.session import Session

    loop, session = asyncio.new_event_loop(), Session(view_config)
    # Apart: the browser's own loop runs in this thread.
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def done(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    def ask(route: str, **question: Any) -> Any:
        return json.loads(done(answer_to(session, route, question)))

    done(session.open())
    yield ask
    session.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


@pytest.fixture(scope="session")
def viewed(view_config, print_route) -> Iterator[Viewed]:
    """A server that answers for it, as `saccade view` starts one."""
    import uvicorn

    from saccade.viewer.app import make_app
    from saccade.viewer.server import listen, new_address
    from saccade.viewer.session import Session

    with listen("127.0.0.1", 0) as at:
        address = new_address("127.0.0.1", at.getsockname()[1], has_token=False)
        config = uvicorn.Config(make_app(Session(view_config), address), log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield Viewed(address.url, print_route)
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")  # its event loop would be in the way of tests elsewhere
def browser() -> Iterator[Any]:
    """Chromium from the PATH; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("no chromium on the PATH")
    with playwright.sync_playwright() as started:
        # A root user, as in a container, has no sandbox.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = started.chromium.launch(executable_path=found, args=arguments)
        yield opened
        opened.close()


class Pages:
    """Opens pages; at the end none of them may have met an error or asked another host."""

    def __init__(self, browser: Any, *hosts: str) -> None:
        self._browser, self._seen = browser, Seen()
        self._allowed = (*hosts, "data:", "blob:", "file:", "about:")
        self._contexts: list[Any] = []

    def new(
        self,
        *,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        allowed: str = "",
    ) -> Any:
        context = self._browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        self._contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(WAITED)
        self._watch(page, allowed)
        return page

    def close(self) -> None:
        for context in self._contexts:
            context.close()
        assert not self._seen.errors, self._seen.errors
        assert not self._seen.elsewhere, self._seen.elsewhere

    def _watch(self, page: Any, allowed: str) -> None:
        def said(message: Any) -> None:
            if message.type == "error" and not (allowed and allowed in message.text):
                self._seen.errors.append(message.text)

        def asked(request: Any) -> None:
            if not request.url.startswith(self._allowed):
                self._seen.elsewhere.append(request.url)

        def popped_up(dialog: Any) -> None:
            self._seen.errors.append(f"a dialog: {dialog.message}")
            dialog.dismiss()

        page.on("console", said)
        page.on("pageerror", lambda error: self._seen.errors.append(str(error)))
        page.on("request", asked)
        page.on("dialog", popped_up)


@pytest.fixture
def new_page(browser, viewed) -> Iterator[Callable[..., Any]]:
    """Opens links of the viewer, or an empty page without one."""
    pages = Pages(browser, viewed.address)

    def make(link: str | None = None, **options: Any) -> Any:
        page = pages.new(**options)
        if link is not None:
            page.goto(link)
            settled(page)
        return page

    yield make
    pages.close()


@pytest.fixture
def open_path(browser) -> Iterator[Callable[..., Any]]:
    """Opens a page from disk and without a network; there is no server."""
    pages = Pages(browser)

    def make(file: Path, **options: Any) -> Any:
        page = pages.new(**options)
        page.context.set_offline(True)
        page.goto(file.as_uri())
        settled(page)
        return page

    yield make
    pages.close()


@pytest.fixture
def open_file(open_path, tmp_path) -> Callable[..., Any]:
    """Opens what `--html` writes."""

    def make(html: str, **options: Any) -> Any:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.html"
        file.write_text(html, encoding="utf-8")
        return open_path(file, **options)

    return make


@pytest.fixture
def open_notebook(browser) -> Iterator[Callable[..., Any]]:
    """A page with what a notebook shows under its cells: ``open_notebook(first, second)``."""
    pages = Pages(browser)

    def make(*cells: Any, body: str = "<body>", **options: Any) -> Any:
        page = pages.new(**options)
        shown = "".join(each._repr_html_() for each in cells)
        page.set_content(f'<!doctype html><html lang="en"><title>notebook</title>{body}{shown}')
        return page

    yield make
    pages.close()


def waited(page: Any, expression: str, given: Any = None) -> None:
    """Wait until a function of the page says so.

    Playwright's own wait evaluates text inside the page, which the page's policy forbids.
    """
    until = time.monotonic() + WAITED / 1000
    while not page.evaluate(expression, given):
        assert time.monotonic() < until, f"it never came: {expression} {given or ''}"
        page.wait_for_timeout(30)


def settled(page: Any) -> None:
    """Wait until the screen in sight has all it asked for."""
    page.wait_for_selector("main .panel, main .gallery, main .empty, main .problem")
    for _ in range(2):  # a part may begin to wait when another is done
        waited(page, "() => !document.querySelector('main [aria-busy], main .waiting')")
        page.wait_for_timeout(40)


@pytest.fixture
def wait_until_settled() -> Callable[[Any], None]:
    return settled


@pytest.fixture
def until() -> Callable[..., None]:
    return waited


@pytest.fixture
def text() -> str:
    return TEXT


@pytest.fixture
def other() -> str:
    return OTHER
