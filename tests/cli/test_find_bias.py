"""`saccade find-bias`: a ranked table or JSON on stdout, mistakes in one line."""

import json
import os

import pytest

PAIRS = "{Lily|Tom} went to the park and\nThe {girl|boy} saw a dog, and\nThe {mom|dad} said that\n"


@pytest.fixture(scope="module")
def folder(chance_lenses, tmp_path_factory):
    path = tmp_path_factory.mktemp("lens") / "lens"
    chance_lenses().save(path)
    return path


@pytest.fixture
def given(stories, folder, tmp_path):
    (path := tmp_path / "pairs.txt").write_text(PAIRS, encoding="utf-8")
    sizes = ["--ablate", "1", "--draws", "100"]
    return ["--model", stories.name, "--lens", folder, "--prompts", path, *sizes]


def test_json_has_every_head_and_the_metrics_of_the_model(saccade, stories, given, tmp_path):
    words = ["--words", "she,her,butterfly", "--against", "he,him"]
    out = tmp_path / "bias.json"
    code, printed, err = saccade("find-bias", *given, *words, "--json", "--out", out)
    assert code == 0
    told = json.loads(printed)
    assert told == json.loads(out.read_text())
    assert len(told["heads"]) == stories.n_heads
    assert told["heads"][0]["carries"]["low"] <= told["heads"][0]["carries"]["high"]
    assert "2 of 5 words are several tokens (butterfly, him)" in err


def test_the_table_and_the_heat_map(saccade, given, tmp_path):
    pytest.importorskip("matplotlib")
    png = tmp_path / "bias.png"
    code, printed, _ = saccade("find-bias", *given, "--words", "she,her", "--png", png)
    assert code == 0 and png.read_bytes().startswith(b"\x89PNG")
    assert "Mass on she, her" in printed and "minus mass" not in printed
    assert "would be by chance" in " ".join(printed.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--words", "girl,"], "expected at least 2 words, got 1: girl"),
        (["--words", "sheep"], "is no list of words"),
        (["--suite", "colours"], "no suite 'colours'"),
        (["--words", "she,her", "--against", "her,hers"], "'her' is in both lists"),
        (["--prompts", "nowhere.txt"], "cannot read prompts from nowhere.txt"),
        (["--seed", 10**23], "'--seed'"),
        (["--draws", 10**23], "'--draws'"),
        (["--prompts", os.devnull], "it is a folder or a device, not a file"),
    ],
)
def test_misuse_is_refused_in_one_line(saccade, told_in_a_line, given, options, words):
    code, _, err = saccade("find-bias", *given, *options)
    assert code == 2
    assert words in told_in_a_line(err)
