"""Requests that nobody who means well would send."""

from __future__ import annotations

import base64
import json
import re
import shutil

import pytest

TEXT = "Once upon a time"
SCRIPT = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1:80",
        "127.0.0.1.evil.example:8765",
        "",
        "[::1",
    ],
)
def test_another_host_is_refused(client, host):
    reply = client.get("/api/status", headers={"Host": host})
    assert reply.status_code == 421 and "model" not in reply.json()


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765"])
def test_every_name_of_loopback_is_let_in(client, host):
    assert client.get("/api/status", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1234"},
        {"Origin": "https://127.0.0.1:8765"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_a_page_of_another_origin_is_refused(client, headers):
    assert client.get("/api/status", headers=headers).status_code == 403
    reply = client.post("/api/reading", json={"text": TEXT}, headers=headers)
    assert reply.status_code == 403


def test_the_page_itself_is_let_in_and_may_be_opened_from_a_link(client):
    own = {"Origin": "http://127.0.0.1:8765", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/api/predictions", json={"text": TEXT}, headers=own).status_code == 200
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


def test_a_form_of_another_page_cannot_ask(client):
    body = json.dumps({"text": TEXT})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = client.post("/api/predictions", content=body, headers={"Content-Type": kind})
        assert reply.status_code == 415 and reply.json()["error"].startswith("expected JSON")


@pytest.mark.parametrize(
    "path",
    [
        "/page/../session.py",
        "/page/..%2fdesk.py",
        "/page/%2e%2e/session.py",
        "/page/..%5cdesk.py",
        "/page//etc/passwd",
        "/page/main.js%00.png",
        "/page/",
        "/page/README.md",
        "/../../etc/passwd",
        "/api/runs/..",
        "/api/runs/%2e%2e%2f%2e%2e%2fetc",
        "/api/runs/..%2fadding-gru",
        "/api/runs/stranger",
        "/api/traces/adding-gru",
        "/api/traces/%2Fetc%2Fpasswd",
    ],
)
def test_no_path_leads_out_of_the_folders(client, path):
    reply = client.get(path)
    assert reply.status_code == 404 and set(reply.json()) == {"error", "hint"}
    assert "root:" not in reply.text


@pytest.mark.parametrize(
    "run", ["../adding-gru", "/etc", "..", ".", "", "a" * 300, "adding-gru/best"]
)
def test_a_trace_is_asked_for_by_name_only(client, run):
    reply = client.post("/api/trace", json={"run": run, "input": "a b"})
    assert reply.status_code in (404, 422)


@pytest.fixture(scope="module")
def ram(little_mnist, tmp_path_factory):
    """A gallery with a run that looks at images, and an image file that is not in it."""
    from PIL import Image

    from saccade.viewer.runs import Gallery
    from saccade.zoo.recipes.recipe import find_recipe
    from saccade.zoo.recipes.run import train_recipe
    from saccade.zoo.training.settings import with_settings

    folder = tmp_path_factory.mktemp("ram")
    recipe = find_recipe("ram-mnist")
    settings = with_settings(recipe.settings, ["d_hidden=8", "steps=1", "batch=8"])
    train_recipe(recipe, folder / "runs" / "ram", settings=settings, data=little_mnist)
    Image.new("L", (28, 28), 77).save(folder / "secret.png")
    return Gallery([folder / "runs"], data=little_mnist), folder / "secret.png"


@pytest.mark.parametrize("form", ["{}", " {} ", "./{}", "file://{}"])
def test_the_input_of_a_trace_is_never_a_path(ram, form):
    from saccade.errors import UsageError
    from saccade.viewer.schemas import TraceQuestion

    gallery, secret = ram
    said = set()
    for path in (secret, secret.with_name("nothing.png")):
        question = TraceQuestion(run="ram", input=form.format(path))
        with pytest.raises(UsageError) as refused:
            gallery.trace(question, lambda *_: None)
        said.add(str(refused.value).replace(path.name, ""))
    assert len(said) == 1  # nothing tells which files there are


def test_an_image_is_sent_as_bytes(ram):
    from pydantic import ValidationError

    from saccade.errors import UsageError
    from saccade.viewer.schemas import TraceQuestion

    gallery, picture = ram

    def ask(name, data):
        asked = {"run": "ram", "input": name, "file": data}
        return gallery.trace(TraceQuestion.model_validate(asked), lambda *_: None)

    (found,) = ask("digit.png", base64.b64encode(picture.read_bytes()))
    (usual,) = gallery.trace(TraceQuestion(run="ram", input="3"), lambda *_: None)
    assert found["steps"] == usual["steps"] and found["image"] != usual["image"]
    with pytest.raises(UsageError, match=r"text\.png is no image"):
        ask("text.png", base64.b64encode(b"no image"))
    with pytest.raises(ValidationError):
        ask("digit.png", "?!")


def test_a_link_out_of_a_folder_is_not_followed(gallery_folder, tmp_path):
    from saccade.viewer.runs import Gallery

    outside, inside = tmp_path / "outside", tmp_path / "inside"
    shutil.copytree(gallery_folder / "adding-gru", outside / "secret")
    inside.mkdir()
    (inside / "secret").symlink_to(outside / "secret")
    assert Gallery([inside]).runs() == ()
    assert len(Gallery([outside]).runs()) == 1


def test_tokens_are_never_read_from_a_file(client, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("she\nhidden\n", encoding="utf-8")
    question = {"text": TEXT, "measure": "mass", "words": str(secret)}
    reply = client.post("/api/measure", json=question)
    assert reply.status_code == 400 and "hidden" not in reply.text


def test_an_oversize_question_is_refused_before_it_is_read(client):
    body = json.dumps({"text": "a" * 300_000})
    reply = client.post("/api/reading", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 413

    def drops():
        for _ in range(10_000):
            yield b"x" * 1000

    reply = client.post(
        "/api/reading", content=drops(), headers={"Content-Type": "application/json"}
    )
    assert reply.status_code == 413


def test_a_text_of_too_many_tokens_is_refused_in_words(client, monkeypatch):
    monkeypatch.setattr("saccade.viewer.schemas.MOST_TOKENS", 8)
    reply = client.post("/api/reading", json={"text": "a dog " * 20})
    assert reply.status_code == 400 and "the text is too long" in reply.json()["error"]


@pytest.mark.parametrize(
    ("route", "question", "status"),
    [
        ("reading", {"text": ""}, 422),
        ("reading", {"text": "   "}, 400),
        ("reading", {"text": "a" * 20_001}, 422),
        ("reading", {"text": TEXT, "postion": 1}, 422),
        ("reading", {"text": TEXT, "position": 99}, 400),
        ("reading", {"text": TEXT, "position": 10**30}, 422),
        ("reading", {"text": TEXT, "lens": "../../etc"}, 400),
        ("reading", {"text": TEXT, "top": 10**9}, 422),
        ("reading", {"text": "\ud800"}, 422),
        ("reading", {"text": 5}, 422),
        ("head", {"text": TEXT, "layer": 0, "head": 99}, 400),
        ("head", {"text": TEXT, "layer": -1, "head": 0}, 422),
        ("positions", {"text": TEXT, "count": 10**6}, 422),
        ("positions", {"text": TEXT, "head": 5000}, 409),
        ("positions", {"text": TEXT, "first": 900}, 400),
        ("ranks", {"text": TEXT, "tokens": ["#999999999"]}, 400),
        ("ranks", {"text": TEXT, "tokens": ["x"] * 100}, 422),
        ("measure", {"text": TEXT, "measure": "mass"}, 400),
        ("measure", {"text": TEXT, "measure": "fidelity"}, 409),
        ("measure", {"text": TEXT, "measure": "__class__"}, 422),
        ("act", {"text": TEXT, "changes": []}, 422),
        ("trace", {"run": "adding-gru", "input": "x"}, 409),
        ("nothing", {}, 404),
        ("status", {}, 405),
    ],
)
def test_a_wrong_question_is_told_what_is_wrong(client, route, question, status):
    body = json.dumps(question)
    reply = client.post(f"/api/{route}", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error", "hint"} and "Traceback" not in reply.text


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"text": NaN}', b"[" * 9999]
)
def test_a_body_that_is_no_question_is_refused(client, body):
    reply = client.post("/api/reading", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code in (400, 422) and set(reply.json()) == {"error", "hint"}


def test_answers_can_do_nothing_in_a_browser(client):
    for path in ("/", "/page/main.js", "/api/status", "/api/nothing", "/api/openapi.json"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    refused = client.get("/", headers={"Host": "evil.example"})
    assert "content-security-policy" in refused.headers


def test_a_token_that_says_script_stays_text(client):
    reply = client.post("/api/reading", json={"text": f"Once {SCRIPT}"})
    assert reply.headers["content-type"] == "application/json"
    asked = [{"route": "reading", "question": {"text": f"Once {SCRIPT}"}}, {"route": "traces/dog"}]
    state = {"text": f"Once {SCRIPT}"}
    page = client.post("/api/save", json={"state": state, "questions": asked}).text
    inlined = re.search(r'id="saccade-data">(.*?)</script>', page, flags=re.DOTALL)
    assert inlined is not None
    data = json.loads(inlined[1])
    assert data["state"] == state
    by_route = {each["route"]: each["answer"] for each in data["answers"]}
    assert by_route["reading"] == reply.json()
    assert by_route["traces/dog"]["steps"][1] == "</script><script>alert(1)</script>"
    assert "alert(1)" not in page.replace(inlined[1], "")


def test_a_model_error_shows_and_the_server_lives_on(client, session, monkeypatch, caplog):
    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(session.services.runs, "run", fails)
    reply = client.post("/api/reading", json={"text": TEXT})
    assert reply.status_code == 500
    assert reply.json()["error"] == "the model failed: RuntimeError: out of memory"
    monkeypatch.undo()
    assert client.post("/api/reading", json={"text": TEXT}).status_code == 200


def test_an_address_with_a_token_needs_it(session):
    from fastapi.testclient import TestClient

    from saccade.viewer.app import make_app
    from saccade.viewer.server import new_address

    address = new_address("0.0.0.0", 8765)
    assert len(address.token) >= 32 and address.token in address.url
    with TestClient(make_app(session, address), base_url="http://10.0.0.7:8765") as client:
        for path in ("/", "/page/main.js", "/api/status", "/?token=", "/?token=wrong"):
            assert client.get(path).status_code == 403
        bearer = {"Authorization": f"Bearer {address.token}"}
        assert client.get("/api/status", headers=bearer).status_code == 200
        assert client.get("/api/status", headers={"Host": "evil.example:8765"}).status_code == 421
        opened = client.get(f"/?token={address.token}", follow_redirects=False)
        assert opened.status_code == 303 and opened.headers["location"] == "/"
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        assert cookie.startswith("saccade-token-8765=")  # viewers on two ports keep both
        assert client.get("/api/status").status_code == 200  # the cookie is kept
        # Cookies that other programs set on this host, and that no parser accepts.
        others = f'a[b]=1; {cookie.partition(";")[0]}; x="; @'
        assert client.get("/api/status", headers={"Cookie": others}).status_code == 200
        client.cookies.clear()
        assert client.get("/api/status", headers={"Cookie": 'a[b]=1; x="'}).status_code == 403
