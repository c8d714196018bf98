"""Which data sets are here, and what is said of those that are not."""

import json

import pytest


@pytest.fixture
def only_here(tmp_path, monkeypatch):
    """A folder with one data set, and no other place to look."""
    monkeypatch.delenv("SACCADE_DATA", raising=False)
    folder = tmp_path / "data" / "tinyshakespeare"
    folder.mkdir(parents=True)
    (folder / "input.txt").write_text("To be")
    return tmp_path / "data"


def test_the_list_says_what_is_where(saccade, only_here):
    code, out, _ = saccade("data", "list", "--data", only_here, "--json")
    found = {each["name"]: each for each in json.loads(out)}
    assert code == 0 and found["tinyshakespeare"]["where"].startswith(str(only_here))
    assert found["multi30k"]["where"] is None and found["multi30k"]["licence"]
    code, out, _ = saccade("data", "list", "--data", only_here)
    assert code == 0 and str(only_here) in out and "not here: " in out


def test_an_unknown_one_is_refused_with_the_nearest(saccade, told_in_a_line):
    code, _, err = saccade("data", "fetch", "multi30")
    assert code == 2 and "no data set named 'multi30'" in told_in_a_line(err)
    assert "hint: did you mean 'multi30k'?" in err


def test_fetching_says_the_licence_and_where_it_went(saccade, tmp_path, monkeypatch):
    from saccade.zoo.tasks import datasets as fetch

    def fetched(name, *, progress):
        progress(f"fetching {name}", 1, 1)
        return tmp_path / name

    monkeypatch.setattr(fetch, "fetch_data", fetched)
    code, out, err = saccade("data", "fetch", "multi30k")
    assert code == 0 and out == f"{tmp_path / 'multi30k'}\n"
    assert "multi30k may be used under: " in err and "fetching multi30k: 1/1" in err
    _, out, _ = saccade("data", "fetch", "multi30k", "--json")
    assert json.loads(out) == {"name": "multi30k", "where": str(tmp_path / "multi30k")}
