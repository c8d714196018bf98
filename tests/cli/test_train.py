"""From a recipe to a figure, a trace and a translation, by commands alone."""

import json
import shutil
import sys
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parent.parent / "zoo" / "training" / "tiny.py"


@pytest.fixture
def tiny(saccade):
    """A command that knows the tiny recipe."""

    def run(*words):
        return saccade(*words, "--plugin", PLUGIN)

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learnt; not to be changed."""
    from tiny import TINY

    from saccade.zoo.recipes.run import train_recipe
    from saccade.zoo.training.settings import with_settings

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train_recipe(TINY, folder, settings=with_settings(TINY.settings, ["epochs=12"]))
    return folder


def test_recipes_are_listed_and_one_is_told_in_full(tiny):
    code, out, _ = tiny("recipes")
    assert code == 0 and "tiny-mirror" in out and "at least 0.9" in out
    (found,) = [r for r in json.loads(tiny("recipes", "--json")[1]) if r["name"] == "tiny-mirror"]
    assert (found["metric"], found["published"], found["minutes"]) == ("right", 1.0, 0.01)
    code, out, _ = tiny("recipes", "tiny-mirror")
    assert code == 0 and "training.learning_rate=0.02" in out
    assert "The peak learning rate of the schedule." in out and "Width of an embedding." in out
    settings = json.loads(tiny("recipes", "tiny-mirror", "--json")[1])["settings"]
    assert {"key": "length", "value": 5, "help": "Of the longest word."} in settings


def test_a_recipe_is_trained_into_its_folder_and_resumed(
    tiny, tmp_path, monkeypatch, told_in_a_line
):
    monkeypatch.chdir(tmp_path)
    code, out, err = tiny("train", "tiny-mirror", "--set", "epochs=2", "--set", "d_model=7")
    assert code == 0, err
    assert out.startswith("tiny-mirror: right 0.") and "published 1, a mirror" in out
    assert "34 steps in " in out and out.endswith("in runs/tiny-mirror\n")
    assert "training: 34/34" in err
    code, _, err = tiny("train", "tiny-mirror")
    assert code == 1 and "runs/tiny-mirror exists already" in told_in_a_line(err)
    assert "--resume continues it" in err
    code, _, err = tiny("train", "tiny-mirror", "--resume", "--set", "d_model=11")
    assert code == 1 and "d_model: the run has 7, asked for is 11" in told_in_a_line(err)
    # What is not said is as it was begun, and it may go on for longer.
    code, out, _ = tiny("train", "tiny-mirror", "--resume", "--set", "epochs=3", "--json")
    metrics = json.loads(out)
    assert code == 0 and metrics["steps"] == 51 and metrics["folder"] == "runs/tiny-mirror"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tiny-miror"], 1, "there is no recipe 'tiny-miror'"),
        (["tiny-mirror", "--set", "detph=3"], 2, "detph: unknown key"),
        (
            ["tiny-mirror", "--set", "d_model=wide"],
            2,
            "d_model: expected a whole number, got 'wide'",
        ),
        (["tiny-mirror", "--minutes", "-1"], 2, "minutes: expected 0 or more, got -1.0"),
        (["tiny-mirror", "--set", "device=abacus"], 2, "there is no device 'abacus'"),
        (["tiny-mirror", "--set", "device=cuda:99"], 2, "there is no device cuda:99: torch finds"),
    ],
)
def test_what_cannot_be_trained_is_told_in_a_line(
    tiny, tmp_path, monkeypatch, told_in_a_line, words, code, message
):
    monkeypatch.chdir(tmp_path)
    found, out, err = tiny("train", *words)
    assert found == code and out == "" and message in told_in_a_line(err)
    assert not (tmp_path / "runs").exists()


def test_an_interrupt_says_how_to_go_on(tiny, tmp_path, monkeypatch):
    from saccade.zoo.recipes import run as running

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "train_recipe", interrupted)
    code, _, err = tiny("train", "tiny-mirror", "--out", tmp_path / "run")
    assert code == 130
    assert f"saved in {tmp_path / 'run'}; the same command with --resume continues" in err


def test_a_run_is_evaluated_again(tiny, trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "metrics.json").unlink()
    code, out, _ = tiny("eval", tmp_path / "run", "--json")
    value = json.loads((trained / "metrics.json").read_text())["value"]
    assert code == 0 and json.loads(out)["value"] == value
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["value"] == value


def test_runs_are_evaluated_together_and_their_metrics_kept(
    tiny, trained, tmp_path, told_in_a_line
):
    code, out, _ = tiny("eval", trained, trained, "--out", tmp_path / "both")
    assert code == 0 and out.startswith("tiny-mirror: right ")
    assert json.loads((tmp_path / "both" / "manifest.json").read_text())["runs"] == ["tiny"] * 2
    code, _, err = tiny("eval", trained, "--out", tmp_path / "one")
    assert code == 2 and "--out is for the metrics of several runs" in told_in_a_line(err)


def test_a_trace_is_shown_kept_and_drawn(tiny, saccade, trained, tmp_path):
    files = {name: tmp_path / name for name in ("kept", "a.png", "a.html")}
    options = ["--out", files["kept"], "--png", files["a.png"], "--html", files["a.html"]]
    code, out, err = tiny("trace", trained, "abc", *options)
    assert code == 0 and out.splitlines()[0] == "attention"
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["c", "c"],
        ["b", "b"],
        ["a", "a"],
    ]
    assert all(f"wrote {path}" in err for path in files.values())
    assert files["a.png"].read_bytes().startswith(b"\x89PNG")
    assert "<!doctype html>" in files["a.html"].read_text()
    (found,) = json.loads(tiny("trace", trained, "abc", "--json")[1])
    assert found["memory"] == ["a", "b", "c"] and len(found["weights"]) == 3
    code, out, _ = saccade(
        "plot", files["kept"], "--png", tmp_path / "b.png", "--html", tmp_path / "b"
    )
    assert code == 0 and out.splitlines() == [str(tmp_path / "b.png"), str(tmp_path / "b")]
    assert (tmp_path / "b.png").read_bytes() == files["a.png"].read_bytes()


def test_the_curves_of_a_run_are_drawn(saccade, trained, tmp_path, monkeypatch, told_in_a_line):
    monkeypatch.chdir(tmp_path)
    code, out, _ = saccade("plot", trained, "--json")
    assert code == 0 and json.loads(out) == {"wrote": ["tiny.png"]}
    assert (tmp_path / "tiny.png").exists()
    code, _, err = saccade("plot", trained, "--html", "x.html")
    assert code == 2 and "an image, not a page" in told_in_a_line(err)
    code, _, err = saccade("plot", tmp_path / "nothing")
    assert code == 1 and "no such folder" in told_in_a_line(err)
    (tmp_path / "dog-cross-attention").mkdir()
    code, _, err = saccade("plot", tmp_path / "dog")
    assert code == 1 and told_in_a_line(err) and "there are dog-cross-attention" in err


def test_sentences_are_translated(tiny, trained, monkeypatch, told_in_a_line):
    import io

    assert tiny("translate", trained, "abcd")[:2] == (0, "dcba\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("ab\ncde\n"))
    code, out, _ = tiny("translate", trained, "-", "--json", "--beam", "2")
    found = json.loads(out)
    assert code == 0 and [each["text"] for each in found] == ["ba", "edc"]
    assert found[0]["source"] == "ab" and found[0]["log_prob"] <= 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("ab\n \ncd\n"))
    code, _, err = tiny("translate", trained, "-")
    assert code == 2 and "line 2 is empty" in told_in_a_line(err)
    assert "the sentence is empty" in tiny("translate", trained, " ")[2]
    assert "the input is empty" in tiny("trace", trained, " ")[2]


def test_text_is_drawn_and_the_seed_decides_which(tiny, trained):
    code, out, _ = tiny("sample", trained, "--length", "7", "--prompt", "ab", "--seed", "3")
    assert code == 0 and out.startswith("ab") and len(out) == 10
    again = tiny("sample", trained, "--length", "7", "--prompt", "ab", "--seed", "3", "--json")
    assert json.loads(again[1]) == {"text": out[:-1], "unknown": []}
    assert tiny("sample", trained, "--length", "7", "--prompt", "ab", "--seed", "4")[1] != out


def test_what_a_system_cannot_do_is_told(tiny, trained, monkeypatch, told_in_a_line):
    from dataclasses import dataclass, fields

    from tiny import TINY, TinyMirror

    from saccade.zoo.recipes import recipe as registry
    from saccade.zoo.recipes.recipe import Recipe

    @dataclass(frozen=True, kw_only=True)
    class Mute(Recipe):
        build, restore, evaluate = TinyMirror.build, TinyMirror.restore, TinyMirror.evaluate

    mute = Mute(**{field.name: getattr(TINY, field.name) for field in fields(Recipe)})
    monkeypatch.setattr(registry, "register_recipe", lambda _: None)
    monkeypatch.setattr("saccade.zoo.recipes.recipe._REGISTERED", {"tiny-mirror": mute})
    for command, words in (
        (["trace", trained, "abc"], "tiny-mirror has no attention to trace"),
        (["translate", trained, "abc"], "tiny-mirror is no translator"),
        (["sample", trained], "tiny-mirror does not generate text"),
    ):
        code, _, err = tiny(*command)
        assert code == 2 and words in told_in_a_line(err)


@pytest.mark.parametrize("command", [["eval"], ["trace", "abc"], ["translate", "abc"], ["sample"]])
def test_what_is_no_run_is_told(tiny, tmp_path, told_in_a_line, command):
    name, *more = command
    code, _, err = tiny(name, tmp_path / "nothing", *more)
    assert code == 1 and "nothing is no run of saccade: no such folder" in told_in_a_line(err)
