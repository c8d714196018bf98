"""The page in one file: all of it, nothing from elsewhere, and the answers as they were."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re

import pytest
import torch

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


def test_a_reading_shows_itself_in_a_frame_of_its_own(opened):
    import saccade

    reading = opened.lenses["closed"].read(TEXT, unembedding=True)
    shown = saccade.show(reading)
    frame = shown._repr_html_()
    assert frame.startswith("<iframe srcdoc=") and "allow-same-origin" not in frame
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])
    data = data_of(page)
    answers = {each["route"]: each["answer"] for each in data["answers"]}
    assert answers["reading"] == {**reading.to_dict(), "lens": "lens"}
    assert data["state"] == {"screen": "prompt", "text": TEXT}
    cards = [each["answer"] for each in data["answers"] if each["route"] == "head"]
    assert len(cards) == opened.model.n_heads
    assert cards[3]["lenses"][1]["adds"] == reading.heads[3].to_dict()["adds"]


def test_shown_cards_have_the_shape_that_the_server_gives(opened, ask):
    import saccade

    reading = opened.lenses["closed"].read(TEXT, unembedding=True)
    data = data_of(saccade.show(reading).html)
    card = next(each["answer"] for each in data["answers"] if each["route"] == "head")
    served = ask("head", {"text": TEXT, "layer": 0, "head": 0})
    assert card.keys() == served.keys()
    assert card["lenses"][0].keys() == served["lenses"][0].keys()
    status = next(each["answer"] for each in data["answers"] if each["route"] == "status")
    assert status.keys() == ask("status").keys()


def test_traces_show_themselves_one_or_several(tmp_path):
    import saccade
    from saccade.trace.trace import Trace

    weights = torch.tensor([[0.5, 0.5]])
    trace = Trace(kind="attention", steps=("</script>",), memory=("a", "b"), weights=weights)
    page = saccade.show([trace, trace])
    data = data_of(page.html)
    assert data["state"]["screen"] == "traces"
    answers = {each["route"]: each["answer"] for each in data["answers"]}
    assert answers["traces/trace-2"] == trace.to_dict()
    assert [each["name"] for each in answers["traces"]] == ["trace-1", "trace-2"]
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html


@pytest.mark.parametrize("what", [5, "text", [], [5]])
def test_what_cannot_be_shown_is_refused(what):
    import saccade

    with pytest.raises(saccade.UsageError, match="cannot show"):
        saccade.show(what)
