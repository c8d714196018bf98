"""The same answers without a server: for the command line and for saved pages."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from saccade.errors import SaccadeError
from saccade.viewer.app import answer_to
from saccade.viewer.config import ViewConfig
from saccade.viewer.desk import Desk
from saccade.viewer.offline import Kept, offline_page

T = TypeVar("T")
ASIDE = ("status", "runs", "traces", "trace")  # need no model


def ask_once(config: ViewConfig, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[bytes]:
    """The answers to some questions, by route.

    Raises:
        SaccadeError: the model cannot be opened, or a question cannot be met.
    """

    async def ask() -> list[bytes]:
        desk = Desk(config)
        try:
            if any(route.partition("/")[0] not in ASIDE for route, _ in asked):
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
