"""The examples of the guides run unchanged."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

GUIDES = Path(__file__).parent.parent / "docs" / "guide"
GUIDE = GUIDES / "own-lens.md"
STORY = "One day, Lily saw a big red ball. She liked the ball, and she played with it in the park. "


@pytest.fixture
def examples(tmp_path, monkeypatch):
    """The files of the guide to lenses, by name; what they register is removed afterwards."""
    from saccade.interp.lenses import gradient as objectives
    from saccade.interp.lenses import lens

    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lens, "_REGISTERED", dict(lens._REGISTERED))
    monkeypatch.setattr(objectives, "_OBJECTIVES", dict(objectives._OBJECTIVES))
    text = GUIDE.read_text(encoding="utf-8")
    files = dict(re.findall(r"Save it as `(\w+\.py)`:\n\n```python\n(.*?)```", text, re.DOTALL))
    assert list(files) == ["narrow.py", "ridge.py"] and text.count("```python") == 2
    for name, source in files.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is too small for several threads
    yield {name: tmp_path / name for name in files}
    torch.set_num_threads(before)


def test_a_lens_and_an_objective_of_ones_own_are_fitted_and_read_with(
    examples, stories, tmp_path, capsys
):
    from saccade.cli.main import main

    (text := tmp_path / "story.txt").write_text(STORY * 9, encoding="utf-8")
    own = ["--plugin", str(examples["narrow.py"]), "--model", stories.name]
    names = ["--kind", "narrow", "--objective", "first-token", "--method", "train"]
    sizes = ["--steps", "3", "--window", "31", "--tokens", "400"]
    corpus = ["--corpus", str(text), "--out", str(tmp_path / "lens")]
    assert main(["lens", "fit", *own, *names, *sizes, *corpus, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["provenance"]
    assert (made["kind"], made["objective"], made["method"]) == ("narrow", "first-token", "train")
    assert main(["read", STORY[:30], *own, "--lens", str(tmp_path / "lens"), "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert len(heads) == 8 and all(head["lens"]["predicts"] for head in heads)


def test_the_commands_of_a_lens_with_a_closed_form_of_its_own_run_as_they_stand(
    examples, stories, tmp_path, capsys, monkeypatch
):
    """With the small model, its texts and fewer tokens; all else is as in the guide."""
    from saccade.cli.main import main

    monkeypatch.chdir(tmp_path)
    (books := tmp_path / "books").mkdir()
    (books / "story.txt").write_text(STORY * 19, encoding="utf-8")
    (tmp_path / "wiki.txt").write_text(STORY[::-1] + STORY * 4, encoding="utf-8")
    commands = re.findall(r"^\$ saccade (.*ridge\.py.*)$", GUIDE.read_text("utf-8"), re.MULTILINE)
    fit, read, evaluate, merge = map(shlex.split, commands)
    little = ["--model", stories.name, "--json"]
    sizes = [*little, "--window", "31", "--tokens", "600"]

    def run(*arguments):
        assert main(list(arguments)) == 0
        return json.loads(capsys.readouterr().out)

    made = run(*fit, *sizes)["provenance"]
    assert (made["kind"], made["method"], made["corpus"]) == ("ridge", "closed-form", "books/")
    assert all(head["lens"]["predicts"] for head in run(*read, *little)["heads"])
    scored = run(*evaluate, *sizes, "--positions", "32", "--kind", "none")
    assert scored["lenses"]["kind"] == "ridge" and len(scored["lenses"]["heads"]) == 40
    for day in ("monday", "tuesday"):
        (tmp_path / f"{day}.txt").write_text(f"It was {day}. " + STORY * 9, encoding="utf-8")
        asked = [f"{day}.txt" if word == "books/" else word for word in fit]
        run(*asked[:-1], f"ridge-{day}", *sizes)
    merged = run(*merge, *little)["provenance"]
    assert (merged["kind"], merged["corpus"]) == ("ridge", "monday.txt + tuesday.txt")


def test_a_recipe_of_ones_own_is_trained_and_traced(tmp_path, capsys, monkeypatch):
    from saccade.cli.main import main
    from saccade.zoo.recipes import recipe as registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", {})
    text = (GUIDES / "own-recipe.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    Path("largest.py").write_text(source, encoding="utf-8")
    commands = re.findall(r"^\$ saccade (.*)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["train", "trace"]
    for command in commands:
        assert main([*shlex.split(command), "--json"]) == 0
    figures, traces = map(json.loads, capsys.readouterr().out.splitlines())
    assert figures["value"] < 0.05
    (weights,) = traces[0]["weights"]
    assert weights[1] == max(weights) and Path("look.html").exists()
