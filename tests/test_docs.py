"""The examples of the guides run as they stand."""

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
def example(tmp_path, monkeypatch):
    """The guide's one block of Python, as a file; what it registers is forgotten afterwards."""
    from saccade.interp.lenses import gradient as objectives
    from saccade.interp.lenses import lens

    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(lens, "_KINDS", {kind: lens.lens_kind(kind) for kind in lens.lens_kinds()})
    monkeypatch.setattr(objectives, "_OBJECTIVES", dict(objectives._OBJECTIVES))
    (source,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (path := tmp_path / "narrow.py").write_text(source, encoding="utf-8")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the model is too small to share the work
    yield path
    torch.set_num_threads(before)


def test_a_lens_and_an_objective_of_ones_own_are_fitted_and_read_with(
    example, stories, tmp_path, capsys
):
    from saccade.cli.main import main

    (text := tmp_path / "story.txt").write_text(STORY * 9, encoding="utf-8")
    own = ["--plugin", str(example), "--model", stories.name]
    names = ["--kind", "narrow", "--objective", "first-word", "--method", "train"]
    sizes = ["--steps", "3", "--window", "31", "--tokens", "400"]
    corpus = ["--corpus", str(text), "--out", str(tmp_path / "lens")]
    assert main(["lens", "fit", *own, *names, *sizes, *corpus, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["made"]
    assert (made["kind"], made["objective"], made["method"]) == ("narrow", "first-word", "train")
    assert main(["read", STORY[:30], *own, "--lens", str(tmp_path / "lens"), "--json"]) == 0
    heads = json.loads(capsys.readouterr().out)["heads"]
    assert len(heads) == 8 and all(head["predicts"] for head in heads)


def test_a_recipe_of_ones_own_is_trained_and_traced(tmp_path, capsys, monkeypatch):
    from saccade.cli.main import main
    from saccade.zoo.recipes import registry as finding

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finding, "_REGISTERED", {})
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
