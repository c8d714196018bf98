"""`saccade heads flow` and `saccade heads paths` show the graph of one prediction."""

import json

import pytest

from saccade.cli.main import main

TEXT = "Once upon a time, Lily had a red ball. One day, Lily"


@pytest.fixture
def model(story_folder):
    return ["--model", str(story_folder)]


def test_flow_prints_heads_with_measured_and_first_order_effects(model, capsys):
    assert main(["heads", "flow", TEXT, "--token", "saw", "--threshold", "0.3", *model]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "against the mean logit" in lines[0]
    assert lines[1].split()[:3] == ["head", "measured", "first"]
    assert "@" in lines[2]
    assert any("of what heads give directly is shown" in line for line in lines)


def test_a_higher_threshold_shows_less_of_the_same_graph(model, capsys):
    found = []
    for threshold in ("0.05", "0.4"):
        options = ["--token", "saw", "--threshold", threshold, "--json"]
        assert main(["heads", "flow", TEXT, *options, *model]) == 0
        found.append(json.loads(capsys.readouterr().out))
    many, few = ({(e["source"], e["to"]) for e in each["edges"]} for each in found)
    assert few < many
    assert found[1]["kept"] < found[0]["kept"]


def test_paths_measures_the_heads_that_come_first(model, capsys):
    options = ["--token", "saw", "--to", "4.3", "--heads", "3"]
    assert main(["heads", "paths", TEXT, *options, "--json", *model]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["through"]["layer"] == 4
    assert len(found["heads"]) == 3
    assert all(each["layer"] < 4 for each in found["heads"])
    assert main(["heads", "paths", TEXT, *options, *model]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--to", "nine"], "expected a head such as 9.6, got 'nine'"),
        (["--to", "99.0"], "no layer 99"),
        (["--to", "4.99"], "no head 99 in layer 4"),
        (["--to", "4.0", "--position", "500"], "no position 500"),
        (["--to", "0.0"], "0.0 is in the first layer"),
        (["--to", "4.0", "--against", "saw"], "begin with the same token"),
    ],
)
def test_a_path_that_is_not_there_is_refused(model, capsys, options, words):
    assert main(["heads", "paths", TEXT, "--token", "saw", *options, *model]) == 2
    assert words in capsys.readouterr().err
