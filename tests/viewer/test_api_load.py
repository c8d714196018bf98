"""Many at once: what is asked twice is worked on once, and too much is refused."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

TEXT = "Once upon a time, there was a little girl named"


def test_two_hundred_at_once_are_answered_or_told_to_wait(server):
    tokens = ("Lily", "Tom", "dog", "cat", "tree")

    def one(number: int) -> tuple[int, float]:
        question = {"text": f"{TEXT} {tokens[number % 5]} {number % 40}"}
        began = time.perf_counter()
        reply = client.post(f"{server}/api/reading", json=question)
        body = reply.json()
        assert "heads" in body or body["error"].startswith("busy")
        assert reply.status_code == 200 or reply.headers["Retry-After"] == "1"
        return reply.status_code, time.perf_counter() - began

    limits = httpx.Limits(max_connections=200)
    with httpx.Client(limits=limits, timeout=120) as client, ThreadPoolExecutor(200) as crowd:
        found = list(crowd.map(one, range(200)))
    statuses = [status for status, _ in found]
    assert set(statuses) <= {200, 503} and statuses.count(200) >= 16
    seconds = sorted(time for _, time in found)
    print(  # noqa: T201
        f"200 at once: {statuses.count(200)} answered, {statuses.count(503)} told to wait; "
        f"median {seconds[100]:.2f} s, slowest {seconds[-1]:.2f} s"
    )
    assert httpx.get(f"{server}/api/status", timeout=10).json()["state"] == "ready"


def test_a_question_that_many_ask_is_worked_on_once():
    from saccade.viewer.worker import Worker

    runs: list[int] = []

    def job(_: object) -> str:
        runs.append(1)
        time.sleep(0.1)
        return "answer"

    async def ask() -> list[str]:
        worker = Worker(most_waiting=1)
        return await asyncio.gather(*(worker.ask("same", job) for _ in range(50)))

    assert asyncio.run(ask()) == ["answer"] * 50 and len(runs) == 1


def test_a_full_queue_says_that_it_is_busy():
    from saccade.viewer.worker import BusyError, Worker

    go = threading.Event()

    async def ask() -> None:
        worker = Worker(most_waiting=2)
        first = [asyncio.create_task(worker.ask(f"{n}", lambda _: go.wait(9))) for n in range(3)]
        await asyncio.sleep(0.01)
        assert worker.waiting == 2
        with pytest.raises(BusyError, match="3 questions are waiting"):
            await worker.ask("one too many", lambda _: None)
        go.set()
        assert await asyncio.gather(*first) == [True] * 3

    asyncio.run(ask())


def test_work_that_nobody_waits_for_is_given_up():
    from saccade.viewer.worker import JobCancelledError, Worker

    steps: list[int] = []

    def long(progress) -> None:
        for number in range(1000):
            progress("works", number, 1000)
            steps.append(number)
            time.sleep(0.01)

    async def is_gone() -> bool:
        return True

    async def ask() -> str:
        worker = Worker()
        with pytest.raises(JobCancelledError):
            await worker.ask("long", long, is_gone=is_gone)
        return await worker.ask("short", lambda _: "done")

    assert asyncio.run(ask()) == "done" and len(steps) < 500


def test_status_answers_while_the_model_works(config, opened, served):
    from dataclasses import replace

    from saccade.viewer.session import Session

    session = Session(replace(config, has_model=False))
    session.use(opened)
    go = threading.Event()

    def slow(_: object, progress) -> dict[str, object]:
        progress("scoring roles of heads", 1, 3)
        assert go.wait(20)
        return {"model": "", "seed": 0, "heads": []}

    session._services.readings.roles = slow
    with served(session) as url, ThreadPoolExecutor(1) as other:
        asked = other.submit(httpx.get, f"{url}/api/roles", timeout=30)
        for _ in range(200):
            status = httpx.get(f"{url}/api/status", timeout=5).json()
            if status["job"]:
                break
            time.sleep(0.02)
        assert status["job"] == {"what": "scoring roles of heads", "done": 1, "total": 3}
        go.set()
        assert asked.result().status_code == 200
        assert httpx.get(f"{url}/api/status", timeout=5).json()["job"] is None


def test_the_page_is_there_before_the_model(config, served):
    from saccade.viewer import session as sessions

    go = threading.Event()

    def slow(_: object, progress) -> None:
        progress("opens a model", 1, 4)
        assert go.wait(20)
        raise sessions.ModelError("no such model", hint="give another")

    session = sessions.Session(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "open_model_and_lenses", slow)
        with served(session) as url:
            assert httpx.get(url, timeout=5).status_code == 200
            status = _until(url, lambda found: found["opening"])
            assert status["state"] == "opening" and status["model"] is None
            assert status["opening"] == {"what": "opens a model", "done": 1, "total": 4}
            reply = httpx.post(f"{url}/api/reading", json={"text": TEXT}, timeout=5)
            assert reply.status_code == 503 and "still being opened" in reply.json()["error"]
            assert reply.headers["Retry-After"] == "1"
            go.set()
            status = _until(url, lambda found: found["state"] != "opening")
            assert status["state"] == "failed"
            assert status["problem"] == {"error": "no such model", "hint": "give another"}
            reply = httpx.post(f"{url}/api/reading", json={"text": TEXT}, timeout=5)
            assert reply.status_code == 409 and reply.json()["error"] == "no such model"
            assert httpx.get(f"{url}/api/runs", timeout=5).status_code == 200


def _until(url, is_so):
    for _ in range(200):
        status = httpx.get(f"{url}/api/status", timeout=5).json()
        if is_so(status):
            return status
        time.sleep(0.02)
    raise AssertionError(f"it never was so: {status}")
