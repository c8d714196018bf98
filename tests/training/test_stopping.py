"""Ctrl-C asks, a second one does not ask."""

import os
import signal
import threading

import pytest

from saccade.training.stopping import noticing_interrupts


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
