"""The table of routes: a row is all that a route needs, and answers are what it says they are."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from saccade.viewer.routes import READINGS, ROUTES, Route
from saccade.viewer.schemas import Question

TEXT = "Once upon a time, there was a little girl named"
PORT = 8765
SAMPLES: dict[str, dict[str, Any] | None] = {
    "status": None,
    "lenses": None,
    "roles": None,
    "runs": None,
    "runs/adding-gru": None,
    "runs/damaged": None,
    "traces": None,
    "traces/dog": None,
    "reading": {"text": TEXT},
    "predictions": {"text": TEXT},
    "measure": {"text": TEXT, "measure": "direct", "token": "Lily", "against": "Tom"},
    "head": {"text": TEXT, "layer": 1, "head": 3},
    "agreement": {"text": TEXT, "layer": 1, "head": 3},
    "attention": {"text": TEXT, "layer": 1, "head": 3},
    "positions": {"text": TEXT},
    "attribution": {"text": TEXT, "token": "Lily"},
    "cell": {"text": TEXT, "layer": 1, "head": 3, "at": 2},
    "flow": {"text": TEXT},
    "generate": {"text": TEXT, "index": 1},
    "ranks": {"text": TEXT, "tokens": ["Lily"]},
    "compare": {"text": TEXT, "other": TEXT.replace("girl", "dog"), "token": "Lily"},
    "act": {"text": TEXT, "changes": [{"kind": "ablate", "layer": 1, "head": 3}], "say": 2},
    "atlas": None,
    "atlas/3.2": None,
    "find": {"where": ["layer>2"], "like": "3.2"},
}
MAPS = {
    "quality",
    "settings",
    "versions",
    "texts",
    "metrics",
    "validation",
    "meta",
    "tests",
    "details",
    "roles",
}  # by any name


class CountQuestion(Question):
    """How often is a letter in a text?"""

    text: str
    letter: str = "e"


@dataclass(frozen=True)
class Letter:
    """A letter of a text."""

    text: str
    n: int


@dataclass(frozen=True)
class Count:
    """How often a letter is in a text."""

    model: str
    letters: tuple[Letter, ...]


def count(service: Any, asked: CountQuestion, progress: Any) -> Count:
    """Counts a letter."""
    progress("counts", 0, 1)
    service.counted.append(asked.text)
    return Count(service._runs.model.name, (Letter(asked.letter, asked.text.count(asked.letter)),))


@pytest.fixture
def counting(config, opened, monkeypatch):
    """A session with one row more, whose method notes what it was asked."""
    from saccade.viewer.reading_service import ReadingService
    from saccade.viewer.session import Session

    monkeypatch.setattr(ReadingService, "count", count, raising=False)
    monkeypatch.setattr(ReadingService, "counted", [], raising=False)
    added = Route("count", READINGS, lambda service: service.count, CountQuestion, by_worker=True)
    session = Session(replace(config, has_model=False), routes=(*ROUTES, added))
    session.use(opened)
    yield session
    session.close()


@pytest.fixture
def counter(counting):
    """Asks that session."""
    from fastapi.testclient import TestClient

    from saccade.viewer.app import make_app
    from saccade.viewer.security import Address

    app = make_app(counting, Address(port=PORT))
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}") as client:
        yield client


def test_a_row_is_all_that_a_new_route_needs(counter, counting, stories):
    expected = {"model": stories.name, "letters": [{"text": "t", "n": 3}]}
    asked = {"text": "to be or not to be", "letter": "t"}
    for _ in range(2):
        reply = counter.post("/api/count", json=asked)
        assert reply.status_code == 200 and reply.json() == expected
    assert counting.services.readings.counted == [asked["text"]], (
        "the second answer comes from the cache"
    )
    assert counter.post("/api/count", json={**asked, "leter": "t"}).status_code == 422
    assert (
        counter.post("/api/count", json={"text": "", "letter": "t"}).json()["letters"][0]["n"] == 0
    )


def test_the_schema_has_a_new_route_with_the_shape_of_its_dataclass(counter):
    schema = counter.get("/api/openapi.json").json()
    operation = schema["paths"]["/api/count"]["post"]
    assert operation["description"] == "Counts a letter."
    shape = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert shape == {"$ref": "#/components/schemas/Count"}
    count = schema["components"]["schemas"]["Count"]
    assert count["required"] == ["model", "letters"] and count["additionalProperties"] is False
    assert count["properties"]["letters"]["items"] == {"$ref": "#/components/schemas/Letter"}
    asked = operation["requestBody"]["content"]["application/json"]["schema"]
    assert asked == {"$ref": "#/components/schemas/CountQuestion"}


def test_saved_pages_and_the_command_line_have_a_new_route(counter, counting):
    from saccade.errors import UsageError
    from saccade.viewer.app import answer_to

    asked = {"route": "count", "question": {"text": "eel"}}
    page = counter.post("/api/save", json={"questions": [asked]}).text
    found = re.search(r'id="saccade-data">(.*?)</script>', page, flags=re.DOTALL)
    answers = {each["route"]: each["answer"] for each in json.loads(found[1])["answers"]}
    assert answers["count"]["letters"] == [{"text": "e", "n": 2}]
    assert (
        json.loads(asyncio.run(answer_to(counting, "count", {"text": "eel"}))) == answers["count"]
    )
    with pytest.raises(UsageError, match="there is no route 'cuont'") as raised:
        asyncio.run(answer_to(counting, "cuont", {}))
    assert "traces/NAME, count" in raised.value.hint


def test_a_session_has_the_routes_of_the_table_and_no_other(ask, client):
    assert client.post("/api/count", json={"text": "a"}).status_code == 404
    paths = {f"/api/{route.path}": {route.verb.lower()} for route in ROUTES}
    schema = ask("openapi.json")
    assert {path: set(verbs) for path, verbs in schema["paths"].items()} == {
        **paths,
        "/api/save": {"post"},  # it is made from answers of the others
    }


@pytest.mark.parametrize("route", SAMPLES)
def test_an_answer_is_of_the_type_that_its_method_says(client, route):
    from pydantic import TypeAdapter

    from saccade.viewer.routes import find_route

    asked, path = SAMPLES[route], f"/api/{route}"
    reply = client.get(path) if asked is None else client.post(path, json=asked)
    assert reply.status_code == 200, reply.text[:500]
    shape = find_route(route).route.describe().answer
    # Strict: no number for a string; and no field that is not of the dataclass.
    TypeAdapter(shape).validate_json(reply.content, strict=True, extra="forbid")


def sections() -> dict[str, list[Any]]:
    """The JSON that the README shows, by route."""
    import saccade

    readme = (Path(saccade.__file__).parent / "viewer" / "README.md").read_text(encoding="utf-8")
    found: dict[str, list[Any]] = {}
    for heading, body in re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", readme, flags=re.M | re.S):
        blocks = re.findall(r"^```json\n(.*?)^```", body, flags=re.M | re.S)
        shown = [json.loads(block) for block in blocks if '{"kind": "ablate"' not in block]
        for route in re.findall(r"/api/([\w/]+)", heading):
            found[route] = shown
    return found


def difference(shown: Any, served: Any, path: str) -> list[str]:
    """Where two answers have other keys; what one of them leaves empty is not compared."""
    if isinstance(shown, list) and isinstance(served, list):
        return difference(shown[0], served[0], path) if shown and served else []
    if not (isinstance(shown, dict) and isinstance(served, dict)):
        return []
    if path.rpartition(".")[2] in MAPS:
        return []
    found = (
        [f"{path}: {sorted(shown.keys() ^ served.keys())}"] if shown.keys() ^ served.keys() else []
    )
    return found + [
        line
        for key in shown.keys() & served.keys()
        for line in difference(shown[key], served[key], f"{path}.{key}")
    ]


@pytest.mark.parametrize("route", [route for route in SAMPLES if "/" not in route])
def test_an_answer_has_the_keys_that_the_readme_shows(ask, route):
    readme = sections()
    assert {"reading", "act", "runs/NAME", "trace"} <= readme.keys()
    if route == "traces":
        return  # its example stands in a sentence; `test_a_saved_trace_is_given_as_it_was_saved`
    shown, served = readme[route][0], ask(route, SAMPLES[route])
    if route == "roles":  # the little model splits names into pieces, which two roles are about
        shown["heads"][0] = {
            key: value
            for key, value in shown["heads"][0].items()
            if key not in ("name-mover", "copy")
        }
        assert set(served["left_out"]) == {"name-mover", "copy"}
        served = {**served, "left_out": {}}
    assert not difference(shown, served, route)


def test_what_is_asked_for_by_name_has_the_keys_that_the_readme_shows(ask):
    readme = sections()
    whole = {**readme["runs"][0][0], **readme["runs"][1]}
    assert not difference(whole, ask("runs/adding-gru"), "run")
    assert not difference(readme["trace"][0][0], ask("traces/dog"), "trace")
    assert not difference(readme["atlas/NAME"][0], ask("atlas/3.2"), "head")


def test_the_page_does_not_wait_for_torch(tmp_path):
    program = """
import sys
from saccade.viewer.app import make_app
from saccade.viewer.security import Address
from saccade.viewer.session import Session
from saccade.viewer.worker import ViewConfig
session = Session(ViewConfig())
make_app(session, Address())
assert session.status()["state"] == "opening"
print(sorted({"torch", "transformers", "scipy"} & sys.modules.keys()))
session.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "[]"


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """The texts that the model was run over."""
    from saccade.interp.readings import text_run

    seen: list[str] = []
    before = text_run.TextRun._capture

    def noted(run: Any, **named: Any) -> Any:
        seen.append(run.text)
        return before(run, **named)

    monkeypatch.setattr(text_run.TextRun, "_capture", noted)
    return seen


def test_a_run_that_is_larger_than_the_cache_is_kept_until_the_next(
    config, opened, runs, monkeypatch
):
    from saccade.viewer import model_runs

    monkeypatch.setattr(model_runs, "RUN_BYTES", 1)
    answering = model_runs.ModelRuns(opened)
    for text in ("One", "One", "Two", "Two", "One"):
        answering.run(text, [])
    assert runs == ["One", "Two", "One"]


def test_runs_are_weighed_as_they_are_now_and_the_one_used_longest_ago_goes(opened, monkeypatch):
    from saccade.interp.readings.text_run import TextRun
    from saccade.viewer import model_runs

    size = {"One": 4, "Two": 4, "Three": 1}
    monkeypatch.setattr(TextRun, "n_bytes", property(lambda run: size[run.text]))
    monkeypatch.setattr(model_runs, "RUN_BYTES", 9)
    answering = model_runs.ModelRuns(opened)

    def cached() -> list[str]:
        return [run.text for run in answering._runs.values()]

    for text in size:
        answering.run(text, [])
    assert set(cached()) == {"One", "Two", "Three"} and answering._runs.currsize == 9
    size["One"] = 5  # its attention was asked for
    answering.run("One", [])
    assert set(cached()) == {"Three", "One"} and answering._runs.currsize == 6


def test_answers_that_were_kept_are_bounded_in_bytes(config, opened, monkeypatch):
    from saccade.viewer import session as sessions
    from saccade.viewer.routes import check_question

    monkeypatch.setattr(sessions, "ANSWER_BYTES", 20_000)
    session = sessions.Session(replace(config, has_model=False))
    session.use(opened)

    async def ask() -> list[int]:
        sizes = []
        for number in range(8):
            question = {"text": TEXT, "layer": number % 5, "head": number}
            sizes.append(len(await session.answer(check_question("head", question))))
            assert sum(map(len, session._answers.values())) <= 20_000
        return sizes

    try:
        assert sum(asyncio.run(ask())) > 20_000, "not all of them could be kept"
    finally:
        session.close()
