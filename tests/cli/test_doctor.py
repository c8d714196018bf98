"""`saccade doctor` and `saccade model --check`."""

import importlib.util
import json

import pytest


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """An empty cache, and one data set."""
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "tinyshakespeare").mkdir(parents=True)
    (tmp_path / "data" / "tinyshakespeare" / "input.txt").write_text("To be")
    return tmp_path


def test_it_shows_versions_devices_cache_and_data(saccade, alone):
    (alone / "cache").mkdir()
    (alone / "cache" / "a.json").write_text("12345")
    code, out, err = saccade("doctor", "--json")
    found = json.loads(out)
    assert code == 0 and err == ""
    assert found["versions"]["torch"] and found["devices"][0].startswith("cpu")
    assert found["cache"] == {"path": str(alone / "cache"), "is_writable": True, "bytes": 5}
    assert [*found["data"]["found"]] == ["tinyshakespeare"]
    assert "multi30k" in found["data"]["missing"]
    code, out, _ = saccade("doctor")
    assert code == 0 and "\ndata found   tinyshakespeare\n" in out
    assert not (alone / "cache" / "data").exists()  # nothing is made


def test_it_says_what_a_missing_package_is_needed_for(saccade, alone, monkeypatch):
    from saccade.cli import doctor

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "PIL" else real(name, *rest),
    )
    versions = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda name: None if name == "pillow" else versions(name)
    )
    code, out, _ = saccade("doctor")
    assert code == 0
    assert "pillow, for animations (--gif) and image files: pip install 'saccade[plot]'" in out
    found = {
        each["package"]: each for each in json.loads(saccade("doctor", "--json")[1])["optional"]
    }
    assert not found["pillow"]["is_installed"] and found["pillow"]["version"] is None
    assert found["matplotlib"]["is_installed"] and found["matplotlib"]["version"]


def test_the_check_of_a_model_gives_a_verdict(saccade, story_folder):
    code, out, _ = saccade("model", story_folder, "--check", "--json")
    found = json.loads(out)["check"]
    assert code == 0 and found["effect"] > 0
    assert found["effect"] == pytest.approx(found["whole_run_effect"], rel=1e-2)
    assert found["open_seconds"] > 0 and found["weight_bytes"] > 500_000
    code, out, _ = saccade("model", story_folder, "--check")
    assert code == 0 and "verdict      saccade reads this model" in out


def test_without_the_check_nothing_is_read(saccade, story_folder):
    code, out, _ = saccade("model", story_folder, "--json")
    assert code == 0 and "check" not in json.loads(out)


def test_an_effect_that_a_whole_run_does_not_confirm_is_refused(
    saccade, story_folder, monkeypatch, told_in_a_line
):
    from saccade.interp.readings import model_check

    monkeypatch.setattr(model_check, "_whole_run_effect", lambda *_: 5.0)
    code, _, err = saccade("model", story_folder, "--check")
    assert code == 1 and "5 in a whole run of the model" in told_in_a_line(err)
    assert "--dtype float32" in err
