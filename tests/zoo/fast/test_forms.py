"""Which form runs: told for a while, and for this thread alone."""

import threading

import pytest

from saccade.zoo.fast.forms import is_fast, plain_forms


def test_plain_forms_are_for_a_while_also_where_that_ends_in_an_error():
    with plain_forms():
        with plain_forms():
            assert not is_fast()
        assert not is_fast()
    assert is_fast()
    with pytest.raises(KeyError), plain_forms():
        raise KeyError
    assert is_fast()


def test_another_thread_goes_on_as_it_was():
    found = []
    with plain_forms():
        thread = threading.Thread(target=lambda: found.append(is_fast()))
        thread.start()
        thread.join()
    assert found == [True]
