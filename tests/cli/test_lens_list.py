"""`saccade lens list`: what is in the cache, damaged or not."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def lenses(stories, story, tmp_path, monkeypatch):
    """Lenses where `saccade read` looks for them."""
    from saccade.interp.lenses.fit import fit_lenses
    from saccade.interp.lenses.fit_config import FitConfig
    from saccade.interp.lenses.lens_set import default_lens_path

    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    text = story(tmp_path / "story.txt", sentences=60)
    path = default_lens_path(stories)
    fit_lenses(stories, text, FitConfig(tokens=400, window=31), save_to=path)
    return path


def test_an_empty_cache_is_no_error(saccade):
    code, out, err = saccade("lens", "list")
    assert (code, out) == (0, "")
    assert "no lenses in" in err and "`saccade lens fit` makes some" in err
    assert saccade("lens", "list", "--json")[:2] == (0, "[]\n")


def test_lenses_are_listed_with_what_they_were_made_from(saccade, lenses, stories):
    code, out, err = saccade("lens", "list")
    what, where = out.splitlines()
    assert (code, err) == (0, "")
    assert what.startswith(f"{stories.name}: head lenses by closed-form, 390 tokens of ")
    assert where == f"  {lenses}"
    (found,) = json.loads(saccade("lens", "list", "--json")[1])
    assert found["path"] == str(lenses) and found["model_fingerprint"] == stories.fingerprint


def test_a_damaged_folder_is_said_and_hides_no_other(saccade, lenses):
    (lenses.parent / "0000").mkdir()
    (lenses.parent / ".hidden.partial").mkdir()
    code, out, _ = saccade("lens", "list")
    assert code == 0 and len(out.splitlines()) == 4
    assert "no manifest.json in it" in out
    found = json.loads(saccade("lens", "list", "--json")[1])
    assert [Path(each["path"]).name for each in found] == ["0000", lenses.name]
    assert "error" in found[0] and "error" not in found[1]
