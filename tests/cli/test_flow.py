"""`saccade heads flow` and `paths` show the graph of one prediction, `edge` why a head looks."""

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


def test_edge_prints_parts_that_add_up_to_the_score(model, capsys):
    options = ["--head", "4.3", "--key", "5", "--parts", "3"]
    assert main(["heads", "edge", TEXT, *options, *model]) == 0
    lines = capsys.readouterr().out.splitlines()
    score = float(lines[0].rpartition(" ")[2])
    assert lines[0].startswith("4.3 from ") and "@5 (" in lines[0]
    rows = [line.split() for line in lines[2:6]]
    assert [row[:2] for row in rows[3:]] == [["all", "others"]]
    for side in (-1, 1):
        values = [float(row[side]) for row in rows[:3]]
        values.append(float(rows[3][-1 if side < 0 else 2]))
        assert sum(values) == pytest.approx(score, abs=0.03)
    assert "by rotary position alone" in lines[-1]
    assert main(["heads", "edge", TEXT, *options, "--against", "2", "--json", *model]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layer"], found["head"], found["key"], found["against"]) == (4, 3, 5, 2)
    for side in ("query_parts", "key_parts"):
        total = sum(part["value"] for part in found[side])
        assert total == pytest.approx(found["score"], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--head", "nine", "--key", "1"], "expected a head such as 9.6, got 'nine'"),
        (["--head", "99.0", "--key", "1"], "no layer 99"),
        (["--head", "4.99", "--key", "1"], "no head 99 in layer 4"),
        (["--head", "4.0", "--key", "500"], "no position 500"),
        (["--head", "4.0", "--key", "5", "--query", "3"], "comes after the query"),
        (["--head", "4.0", "--key", "5", "--against", "5"], "both keys are at position 5"),
    ],
)
def test_an_edge_that_is_not_there_is_refused(model, capsys, options, words):
    assert main(["heads", "edge", TEXT, *options, *model]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 2  # the error, and its hint
