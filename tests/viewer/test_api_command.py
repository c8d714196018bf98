"""`saccade view` as it is started: address, Ctrl-C, what it refuses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import pytest


def test_it_prints_its_address_serves_and_stops_on_ctrl_c(gallery_folder):
    command = [sys.executable, "-m", "saccade", "view", str(gallery_folder), "--no-model"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [*command, "--no-browser", "--no-token", "--port", "0"], **pipes
    ) as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        assert _patiently(f"{url}api/status").json()["state"] == "none"
        runs = httpx.get(f"{url}api/runs", timeout=30).json()
        assert {run["name"] for run in runs} == {"adding-gru", "damaged"}
        reply = httpx.post(f"{url}api/reading", json={"text": "a"}, timeout=10)
        assert reply.status_code == 409 and "without a model" in reply.json()["error"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
        assert "Traceback" not in process.stderr.read()


def _patiently(url: str) -> httpx.Response:
    transport = httpx.HTTPTransport(retries=8)
    with httpx.Client(transport=transport) as client:
        return client.get(url, timeout=30)


def test_the_first_free_port_is_taken_and_a_taken_one_refused():
    from saccade.errors import UsageError
    from saccade.viewer import server as serving

    with serving.listen("127.0.0.1", None) as first, serving.listen("127.0.0.1", None) as second:
        taken = first.getsockname()[1]
        assert second.getsockname()[1] != taken
        with pytest.raises(UsageError, match=f"cannot listen at 127.0.0.1:{taken}"):
            serving.listen("127.0.0.1", taken)


def test_every_address_gets_a_token_of_its_own_and_only_loopback_can_do_without():
    from saccade.errors import UsageError
    from saccade.viewer.server import new_address

    tokens = set()
    for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost"):
        tokens.add(new_address(host, 1).token)
        assert not new_address(host, 1, has_token=False).token
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        tokens.add(new_address(host, 1).token)
        with pytest.raises(UsageError, match="can be reached by other machines"):
            new_address(host, 1, has_token=False)
    assert len(tokens) == 8 and min(map(len, tokens)) >= 32
    assert new_address("::1", 80, has_token=False).url == "http://[::1]:80/"


def test_the_printed_address_lets_its_reader_in_and_nobody_else(gallery_folder):
    command = [sys.executable, "-m", "saccade", "view", str(gallery_folder), "--no-model"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--no-browser", "--port", "0"], **pipes) as process:
        url = process.stdout.readline().strip()
        bare = url.partition("?")[0]
        assert _patiently(f"{bare}api/runs").status_code == 403
        with httpx.Client(follow_redirects=True, timeout=30) as reader:
            assert reader.get(url).url == bare  # the token is no longer in the address
            assert {run["name"] for run in reader.get(f"{bare}api/runs").json()} == {
                "adding-gru",
                "damaged",
            }
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["--print", "nothing", "--no-model"], "there is no route 'nothing'"),
        (["--print", "reading", "--no-model", "--ask", '{"text": "a"}'], "without a model"),
        (["--print", "reading", "--no-model", "--ask", '{"txt": "a"}'], "reading: text"),
        (["--print", "reading", "--no-model", "--ask", "[1"], "cannot read the question"),
        (
            ["--print", "reading", "--no-model", "--ask", "{1"],
            "the question is damaged: expected JSON",
        ),
        (["--no-model", "--save", "x.html"], "a saved page needs a prompt"),
    ],
)
def test_misuse_is_told_in_a_line(arguments, said, capsys, tmp_path, monkeypatch):
    from saccade.cli.main import main

    monkeypatch.chdir(tmp_path)
    assert main(["view", *arguments]) in (1, 2)
    err = capsys.readouterr().err
    assert said in err and "hint: " in err and "Traceback" not in err


def test_runs_and_traces_are_printed_without_a_model(gallery_folder, capsys):
    from saccade.cli.main import main

    assert main(["view", str(gallery_folder), "--print", "traces/dog"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] == ["ein", "Hund", "."]
    assert main(["view", str(gallery_folder), "--print", "runs"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_a_page_about_a_prompt_is_written_without_a_server(config, lens_folders, tmp_path):
    from saccade.cli.main import main

    path, text = tmp_path / "page.html", "Once upon a time"
    told = ["view", "--model", config.model, "--lens", str(lens_folders[0])]
    assert main([*told, "--save", str(path), "--text", text]) == 0
    page = path.read_text(encoding="utf-8")
    assert f"<title>{text}</title>" in page and '"route":"attention"' in page


def test_a_missing_package_is_named(monkeypatch, capsys):
    from saccade.cli.main import main

    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["view", "--no-model"]) == 1
    assert "pip install 'saccade[view]'" in capsys.readouterr().err


def test_a_browser_is_opened_only_where_there_is_one(monkeypatch):
    import webbrowser

    from saccade.viewer import server as serving

    def none(*_: object) -> None:
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "get", none)
    serving._open_browser("http://127.0.0.1:1/")
    opened = []

    class Browser:
        def open(self, url: str) -> None:
            opened.append(url)

    monkeypatch.setattr(webbrowser, "get", Browser)
    serving._open_browser("http://127.0.0.1:1/")
    assert opened == ["http://127.0.0.1:1/"]


def test_answers_come_inside_a_running_loop_too(config):
    import asyncio
    from dataclasses import replace

    from saccade.viewer.app import ask_once

    async def in_a_notebook() -> bytes:
        return ask_once(replace(config, has_model=False), [("runs", {})])[0]

    assert {run["name"] for run in json.loads(asyncio.run(in_a_notebook()))} > {"adding-gru"}


def test_a_process_that_has_answered_ends_in_peace(config):
    question = json.dumps({"text": "Once upon a time"})
    command = [sys.executable, "-m", "saccade", "view", "--model", str(config.model)]
    command += ["--lens", config.lenses[0], "--print", "predictions", "--ask", question]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens"] and "terminate" not in done.stderr
