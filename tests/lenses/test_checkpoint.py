"""Where a killed fit goes on: found by its settings, and never in the way."""

import pytest
import torch

from saccade.lenses import checkpoint as checkpoints
from saccade.lenses.checkpoint import Checkpoint

SETTINGS = {"tokens": 5, "model": "ab", "layers": (1, 2)}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))


def of(**changed):
    return Checkpoint.of({**SETTINGS, **changed}, stage="reading", rank=0)


def test_the_same_settings_find_what_was_saved_and_others_do_not():
    of().save({"a": torch.arange(3)})
    assert torch.equal(of().load()["a"], torch.arange(3))
    assert of(tokens=6).load() is None
    assert Checkpoint.of(SETTINGS, stage="reading", rank=1).load() is None
    assert Checkpoint.of(SETTINGS, stage="polishing", rank=0).load() is None


def test_a_damaged_one_costs_time_but_nothing_else():
    kept = of()
    kept.save({"a": torch.arange(300)})
    file = kept.folder / kept.name
    file.write_bytes(file.read_bytes()[:50])
    assert of().load() is None


def test_it_is_not_written_again_and_again(monkeypatch):
    made = []

    def tensors():
        made.append(1)
        return {"a": torch.arange(3)}

    kept = of()
    kept.save_sometimes(tensors)
    assert not made and kept.load() is None  # it has only just begun
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    kept.save_sometimes(tensors)
    assert made == [1] and kept.load() is not None
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 1000.0)
    kept.save_sometimes(tensors)
    assert made == [1]


def test_a_fit_that_is_done_leaves_nothing_of_any_stage_or_process():
    for stage in ("reading", "polishing"):
        for rank in (0, 1):
            Checkpoint.of(SETTINGS, stage=stage, rank=rank).save({"a": torch.arange(3)})
    of().clear()
    assert not of().folder.exists()
    of().clear()  # nothing there: nothing to do
