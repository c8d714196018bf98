from pathlib import Path

from saccade.store.atomic import cache_dir, data_dir


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"


def test_a_home_sign_is_understood(monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", "~/lenses")
    monkeypatch.setenv("SACCADE_DATA", "~/data")
    assert cache_dir() == Path.home() / "lenses"
    assert data_dir() == Path.home() / "data"


def test_without_a_wish_the_systems_cache_is_used(monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", "")  # set but empty counts as not set
    assert cache_dir().name == "saccade"
    assert cache_dir().is_absolute()


def test_without_a_wish_there_is_no_data_folder(monkeypatch):
    monkeypatch.delenv("SACCADE_DATA", raising=False)
    assert data_dir() is None
