"""`saccade evaluate`, on items of one's own and the little model."""

from __future__ import annotations

import json

import pytest

ITEMS = (
    {"prompt": "Once upon a time, there was a little girl named ", "target": "Lily"},
    {"prompt": "One day, Tom saw a dog. The dog"},
)
WORDS = (["girl"], ["dog", "Constantinople"])


@pytest.fixture
def file(tmp_path, monkeypatch):
    from saccade.interp.studies.suites import readouts

    monkeypatch.setattr(readouts, "TEXT_TOKENS", 960)
    path = tmp_path / "mine.jsonl"
    items = ({**a, "intermediates": b} for a, b in zip(ITEMS, WORDS, strict=True))
    path.write_text("\n".join(map(json.dumps, items)))
    return path


def test_a_file_of_items_is_a_table_with_controls_and_what_is_left_out(saccade, stories, file):
    png = file.with_suffix(".png")
    code, out, err = saccade("evaluate", file, "--png", png, "--model", stories.name)
    assert code == 0
    assert out.startswith("lens-eval on ") and "layers: logit lens" in out
    assert "control" in out and "excess" in out and "random directions" in out
    assert "mine: 1 of 3 intermediates are left out" in out
    assert "left out: heads: fitted lens" in err
    assert png.read_bytes().startswith(b"\x89PNG")


def test_the_table_in_json_has_every_row_with_its_interval(saccade, stories, file):
    code, out, _ = saccade("evaluate", file, "--limit", "1", "--json", "--model", stories.name)
    found = json.loads(out)
    assert code == 0 and found["suite"] == "lens-eval" and found["source"] == str(file)
    assert {row["n"] for row in found["rows"]} == {1}
    assert all(row["low"] <= row["value"] <= row["high"] for row in found["rows"])


def test_help_names_the_suites(saccade):
    code, out, _ = saccade("evaluate", "--help")
    assert code == 0 and "lens-eval:" in out and "roles:" in out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no suite"),
        ("[]", "has no items"),
        ('{"text": "a"}', "items with the fields text fit no suite"),
        ('{"prompt": "a", "intermediates": ["b"]}\n{"prompt": "a"}', "item 2 has no intermediates"),
        ('{"prompt": "a", "intermediates": [7]}', "item 1: intermediates is no list of words"),
        ('{"template": "{name_A} and {name_B} went to"}', "item 1: template has no {name_C}"),
    ],
)
def test_bad_items_are_refused_before_a_model_is_opened(
    saccade, told_in_a_line, tmp_path, content, message
):
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_text(content)
    code, out, err = saccade("evaluate", path, "--model", "no such model")
    assert code != 0 and out == ""
    assert message in told_in_a_line(err)


@pytest.mark.parametrize("suite", ["lens-eval", "roles"])
def test_missing_data_are_named_with_their_folder(
    saccade, told_in_a_line, tmp_path, monkeypatch, suite
):
    monkeypatch.delenv("SACCADE_DATA", raising=False)
    code, _, err = saccade("evaluate", suite, "--data", tmp_path, "--model", "no such model")
    assert code != 0 and f"the suite {suite} needs the data set" in told_in_a_line(err)
