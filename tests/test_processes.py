"""One process alone; `tests/lenses` and `tests/training` have several, played and real."""

import torch

from saccade.processes import Processes, joined


def test_one_process_alone_needs_nobody():
    alone = Processes()
    tensor = torch.arange(3.0)
    alone.add_up([tensor])
    alone.largest(tensor)
    alone.from_first([tensor])
    alone.wait()
    assert tensor.tolist() == [0, 1, 2] and alone.is_first
    assert alone.in_order(tensor)[0] is tensor


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with joined() as processes:
        assert processes == Processes(rank=0, world=1)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with joined() as processes:
        assert processes.world == 1


def test_a_process_knows_its_place_before_they_have_joined(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert Processes.started() == Processes(rank=2, world=3)
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    assert Processes.started() == Processes()
