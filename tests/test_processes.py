"""A single process and its interruption: the first Ctrl-C requests a stop, the second forces it.

`tests/interp/lenses` and `tests/zoo/training` test several processes, simulated and real.
"""

import os
import signal
import threading

import pytest
import torch

from saccade.distributed import Processes, joined, noticing_interrupts


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


def test_the_first_is_noticed_and_the_second_ends():
    before = signal.getsignal(signal.SIGINT)
    with noticing_interrupts() as is_asked:
        assert not is_asked()
        os.kill(os.getpid(), signal.SIGINT)
        assert is_asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_farewell_of_the_cluster_asks_and_no_more():
    with noticing_interrupts() as is_asked:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_asked()


def test_outside_the_main_thread_nothing_is_touched():
    found = []

    def work():
        with noticing_interrupts() as is_asked:
            found.append(is_asked())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]
