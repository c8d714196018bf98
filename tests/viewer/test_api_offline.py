"""The page in one file: all of it, nothing from elsewhere, and the answers as they were."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

TEXT = "Once upon a time"


@pytest.fixture
def saved(client) -> str:
    asked = [{"route": "reading", "question": {"text": TEXT}}, {"route": "runs"}]
    reply = client.post("/api/save", json={"state": {"text": TEXT}, "questions": asked})
    assert reply.status_code == 200, reply.text
    assert "attachment" in reply.headers["content-disposition"]
    return reply.text


def data_of(page: str) -> dict:
    found = re.search(r'id="saccade-data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_saved_page_holds_what_the_server_answered(saved, ask):
    data = data_of(saved)
    assert data["state"] == {"text": TEXT}
    answers = {each["route"]: each["answer"] for each in data["answers"]}
    assert answers["reading"] == ask("reading", {"text": TEXT})
    assert answers["runs"] == ask("runs")
    assert answers["status"]["model"] == ask("status")["model"]


def test_a_saved_page_names_no_other_file_and_no_other_host(saved):
    without = saved.replace(json.dumps(data_of(saved)), "")
    assert not re.findall(r'(?:src|href)="(?!#|data:)', without)
    assert "/page/" not in without and "@import" not in without
    for module in modules_of(saved).values():
        assert 'from "./' not in module and not re.search(r'\bfetch\("http', module)


def modules_of(page: str) -> dict[str, str]:
    found = re.search(r'<script type="importmap">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    return {
        name: base64.b64decode(url.partition("base64,")[2]).decode()
        for name, url in json.loads(found[1])["imports"].items()
    }


def test_every_module_that_is_imported_is_in_the_file(saved):
    modules = modules_of(saved)
    imported = {
        name for text in modules.values() for name in re.findall(r'from "(saccade/[^"]+)"', text)
    }
    assert imported <= set(modules) and "saccade/main.js" in modules


def test_the_policy_allows_the_two_scripts_of_the_file_and_no_other(saved):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', saved)
    assert policy is not None and "default-src 'none'" in policy[1]
    assert "script-src 'unsafe" not in policy[1]
    scripts = re.findall(r'<script type="(?:importmap|module)">(.*?)</script>', saved, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_what_cannot_be_answered_is_not_saved(client):
    for route, status in (("nothing", 400), ("save", 400), ("runs/nobody", 404)):
        reply = client.post("/api/save", json={"questions": [{"route": route}]})
        assert reply.status_code == status and reply.json()["hint"]


def test_the_file_of_a_reading_has_the_shapes_that_the_server_gives(opened, ask):
    from saccade.interp.effects.effects import EVERY_KIND
    from saccade.interp.readings.reader import read

    reading = read(opened.model, TEXT, lenses=opened.lenses["closed"], kinds=EVERY_KIND)
    data = data_of(reading.to_html())
    answers = {each["route"]: each["answer"] for each in data["answers"]}
    served = ask("reading", {"text": TEXT})
    assert answers["reading"] == {**served, "lens": "lens"}
    assert answers["status"].keys() == ask("status").keys()
    assert answers["status"]["model"].keys() == ask("status")["model"].keys()
    assert answers["status"]["model"]["layers"] == ask("status")["model"]["layers"]
