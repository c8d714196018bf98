"""Latency of the viewer relative to Python, and its throughput; prints JSON.

`python bench/viewer.py [--model FOLDER] [--lens FOLDER]`. Default: the default model, its lenses.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import uvicorn

from saccade.viewer.app import make_app
from saccade.viewer.security import Address
from saccade.viewer.session import Session
from saccade.viewer.worker import OpenedModel, ViewConfig, open_model_and_lenses

# Twenty tokens of the default model; the last word makes each text a new one.
TEXT = (
    "The old lighthouse keeper walked slowly down to the harbour, where he saw a small boat "
    "and a {}"
)
WORDS = (
    "dog",
    "cat",
    "man",
    "boy",
    "girl",
    "bird",
    "fish",
    "box",
    "net",
    "lamp",
    "rope",
    "book",
)
CROWD = 200
# One client, as in a browser: opening a new connection takes longer than a head card.
CLIENT = httpx.Client(timeout=120, limits=httpx.Limits(max_connections=CROWD))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--lens", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    config = ViewConfig(model=given.model, lenses=tuple(given.lens))
    opened = open_model_and_lenses(config, lambda *_: None)
    session = Session(ViewConfig(has_model=False))
    session.use(opened)
    url = _serve(session)
    print(json.dumps({**_readings(opened, url, given.rounds), **_cards(opened, url), **_load(url)}))


def _readings(opened: OpenedModel, url: str, rounds: int) -> dict[str, Any]:
    """The same reading in Python and from the server, alternating; a new text each time."""
    lenses = next(iter(opened.lenses.values()))
    python, page = [], []
    for word in ("sun", *WORDS[:rounds]):
        text = TEXT.format(word)
        python.append(_timed(partial(lenses.read, text, unembedding=True)))
        page.append(_timed(partial(_ask, url, "reading", text=text)))
    # The first of each is a warm-up: some modules load late.
    mine, theirs = statistics.median(python[1:]), statistics.median(page[1:])
    return {
        "tokens": int(opened.model.encode(TEXT.format("dog")).shape[1]),
        "heads": opened.model.n_heads,
        "reading_seconds": round(mine, 3),
        "head_map_seconds": round(theirs, 3),
        "head_map_over_reading": round(theirs / mine, 2),
    }


def _cards(opened: OpenedModel, url: str) -> dict[str, Any]:
    """Head cards after the map: the model does not run again."""
    text, at = TEXT.format(WORDS[0]), opened.model.layers
    _ask(url, "reading", text=text)
    cards = [
        _timed(partial(_ask, url, "head", text=text, layer=layer.index, head=0)) for layer in at
    ]
    again = _timed(lambda: _ask(url, "head", text=text, layer=at[0].index, head=0))
    return {
        "card_seconds": round(statistics.median(cards), 4),
        "card_again_seconds": round(again, 4),
        "first_paint_seconds": round(_timed(lambda: CLIENT.get(url)), 4),
    }


def _load(url: str) -> dict[str, Any]:
    """Many concurrent requests: for the status, and for head cards that are not cached."""

    def known(_: int) -> tuple[int, float]:
        began = time.perf_counter()
        reply = CLIENT.get(f"{url}/api/status")
        return reply.status_code, time.perf_counter() - began

    def unknown(number: int) -> tuple[int, float]:
        began = time.perf_counter()
        question = {
            "text": TEXT.format(WORDS[number % len(WORDS)]),
            "layer": 0,
            "head": 0,
        }
        reply = CLIENT.post(f"{url}/api/head", json={**question, "position": number % 15})
        return reply.status_code, time.perf_counter() - began

    found = {}
    for name, one in (("status", known), ("cards", unknown)):
        began = time.perf_counter()
        with ThreadPoolExecutor(CROWD) as crowd:
            replies = list(crowd.map(one, range(CROWD)))
        seconds = sorted(each for _, each in replies)
        found[f"load_{name}"] = {
            "asked": CROWD,
            "answered": sum(status == 200 for status, _ in replies),
            "told_to_wait": sum(status == 503 for status, _ in replies),
            "median_seconds": round(seconds[CROWD // 2], 3),
            "slowest_seconds": round(seconds[-1], 3),
            "answers_per_second": round(CROWD / (time.perf_counter() - began), 1),
        }
    return found


def _ask(url: str, route: str, **question: Any) -> Any:
    reply = CLIENT.post(f"{url}/api/{route}", json=question)
    assert reply.status_code == 200, reply.text
    return reply.json()


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _serve(session: Session) -> str:
    at = socket.socket()
    at.bind(("127.0.0.1", 0))
    port = at.getsockname()[1]
    app = make_app(session, Address(port=port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    threading.Thread(target=server.run, kwargs={"sockets": [at]}, daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    main()
