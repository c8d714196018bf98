"""Readings and traces in a notebook: the same page, drawn inline."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from saccade import __version__
from saccade.errors import SaccadeError, UsageError
from saccade.interp.lenses.reading import HeadReading, Reading, plain
from saccade.interp.lenses.reading_table import WEAK
from saccade.interp.lenses.views import UNEMBEDDING
from saccade.viewer.app import answer_to
from saccade.viewer.export import Kept, offline_page
from saccade.viewer.routes import MODEL, find_route
from saccade.viewer.session import Desk, written
from saccade.viewer.worker import ViewConfig

if TYPE_CHECKING:
    from saccade.trace.trace import Trace


# The same answers without a server: for the command line and for saved pages.

T = TypeVar("T")


def ask_once(config: ViewConfig, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """The answers to some questions, by route.

    Raises:
        SaccadeError: the model cannot be opened, or a question cannot be met.
    """

    async def ask() -> list[bytes]:
        desk = Desk(config)
        try:
            if any(find_route(route).route.source is MODEL for route, _ in asked):
                await desk.open()
            return [await answer_to(desk, route, question) for route, question in asked]
        finally:
            desk.close()

    return _finished(ask())


def page_about(config: ViewConfig, text: str) -> str:
    """A page about one prompt: the head map, every head card, the grid of the residual stream."""

    async def ask() -> list[Kept]:
        desk = Desk(config)
        try:
            await desk.open()
            status = desk.status()
            kept = []
            for route, question in _questions(status, text):
                try:
                    answer = await answer_to(desk, route, question)
                except SaccadeError:
                    if route == "reading":
                        raise
                    continue  # what this model or these lenses do not have
                kept.append(Kept(route, question, answer))
            return kept
        finally:
            desk.close()

    return offline_page({"screen": "prompt", "text": text}, _finished(ask()), title=text[:80])


def _finished(work: Coroutine[Any, Any, T]) -> T:
    """The result; in a notebook, whose own loop is running, from a thread beside it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, work).result()


def _questions(status: dict[str, Any], text: str) -> list[tuple[str, dict[str, Any]]]:
    layers = [] if status["model"] is None else status["model"]["layers"]
    heads = [
        {"text": text, "layer": each["layer"], "head": head}
        for each in layers
        for head in range(each["n_heads"])
    ]
    lenses = [None, *status["lenses"]]
    return [
        ("status", {}),
        *(("reading", {"text": text, **({"lens": lens} if lens else {})}) for lens in lenses),
        ("predictions", {"text": text}),
        *(
            ("measure", {"text": text, "measure": measure})
            for measure in ("says", "gain", "fidelity", "contributes", "entropy")
        ),
        ("positions", {"text": text}),
        ("lenses", {}),
        ("roles", {}),
        *(("head", each) for each in heads),
        *(("attention", each) for each in heads),
    ]


HEIGHT = 720  # pixels in a notebook; the rest scrolls
LENS = "lens"


@runtime_checkable
class AnyTrace(Protocol):
    """A trace of any kind."""

    @property
    def title(self) -> str:
        """What it is of."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        ...


@dataclass(frozen=True)
class Shown:
    """A page that shows itself in a notebook, and can be saved."""

    html: str
    height: int = HEIGHT

    def _repr_html_(self) -> str:
        # In a frame of its own: its styles and scripts cannot meet the notebook's.
        return (
            f'<iframe srcdoc="{escape(self.html)}" style="width:100%;border:0" '
            f'height="{self.height}" sandbox="allow-scripts allow-downloads allow-popups" '
            'title="saccade"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write it as one file that works offline."""
        from saccade.store.atomic import atomic_file

        with atomic_file(path) as temporary:
            temporary.write_text(self.html, encoding="utf-8")


def show(what: Reading | Trace | Sequence[Trace], *, height: int = HEIGHT) -> Shown:
    """Draw a reading, a trace or several as the viewer does.

    >>> import torch
    >>> from saccade.trace.trace import Trace
    >>> trace = Trace(kind="attention", steps=("a",), memory=("<b>",), weights=torch.ones(1, 1))
    >>> "srcdoc=" in show(trace)._repr_html_()
    True
    """
    if isinstance(what, Reading):
        state, kept = _of_reading(what)
        return Shown(offline_page(state, kept, title=what.text[:80]), height)
    several = list(what) if isinstance(what, Sequence) else [what]
    if not several or not all(isinstance(each, AnyTrace) for each in several):
        raise UsageError(
            f"cannot show {type(what).__name__}", hint="give a reading, a trace or several traces"
        )
    state, kept = _of_traces(several)
    return Shown(offline_page(state, kept, title=several[0].title[:80]), height)


def _of_reading(reading: Reading) -> tuple[dict[str, Any], list[Kept]]:
    state = {"screen": "prompt", "text": reading.text}
    question: dict[str, Any] = {"text": reading.text}
    if reading.position != len(reading.tokens) - 1:
        state["at"] = str(reading.position)
        question["position"] = reading.position
    rows: dict[int, int] = {}
    for each in reading.heads:
        rows[each.layer] = rows.get(each.layer, 0) + 1
    model = {
        "name": reading.model,
        "layers": [{"layer": layer, "n_heads": n} for layer, n in rows.items()],
        "n_heads": len(reading.heads),
        "d_vocab": 0,
        "max_tokens": len(reading.tokens),
    }
    kept = [
        Kept("status", {}, written(_status(model))),
        Kept("reading", question, written({**reading.to_dict(), "lens": LENS})),
    ]
    for each in reading.heads:
        if each.head is not None:
            asked = {**question, "layer": each.layer, "head": each.head}
            kept.append(Kept("head", asked, written(_card(reading, each))))
    return state, kept


def _card(reading: Reading, head: HeadReading) -> dict[str, Any]:
    """The head card that a reading alone can fill: one lens, and no whole row of attention."""
    explained = head.explained
    common = {"method": "", "explained": None, "fidelity": None, "is_weak": False, "predicts": []}
    lens = {
        **common,
        "name": LENS,
        "kind": "",
        "says": plain(head.says),
        "quality": plain(head.quality),
        "explained": plain(explained),
        "fidelity": plain(head.fidelity),
        "is_weak": explained is not None and explained < WEAK,
        **{name: plain(tuple(getattr(head, name))) for name in ("predicts", "adds", "suppresses")},
    }
    raw = {
        **common,
        "name": UNEMBEDDING,
        "kind": "logit-head",
        "says": None,
        "quality": {},
        "adds": plain(tuple(head.unembedded)),
        "suppresses": [],
    }
    return {
        "layer": head.layer,
        "head": head.head,
        "position": reading.position,
        "tokens": reading.tokens,
        "word": plain(reading.prediction[0]),
        "contributes": plain(head.contributes),
        "lenses": [raw, lens] if head.unembedded else [lens],
        "attention": None,
        "entropy": None,
    }


def _of_traces(traces: Sequence[AnyTrace]) -> tuple[dict[str, Any], list[Kept]]:
    names = [f"trace-{number}" for number in range(1, len(traces) + 1)]
    dicts = [trace.to_dict() for trace in traces]
    listed = [
        {"name": name, "kind": each["kind"], "title": each["title"], "n_steps": len(each["steps"])}
        for name, each in zip(names, dicts, strict=True)
    ]
    kept = [
        Kept("status", {}, written(_status(None))),
        Kept("runs", {}, b"[]"),
        Kept("traces", {}, written(listed)),
    ]
    kept += [
        Kept(f"traces/{name}", {}, written(each)) for name, each in zip(names, dicts, strict=True)
    ]
    return {"screen": "traces", "trace": names[0]}, kept


def _status(model: dict[str, Any] | None) -> dict[str, Any]:
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
