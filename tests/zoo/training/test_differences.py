"""In what two settings differ."""

from saccade.zoo.training.settings import differences


def test_nothing_differs_from_itself_even_through_json():
    settings = {"a": (1, 2), "b": {"c": None, "d": [1.5]}}
    assert not differences({"a": [1, 2], "b": {"c": None, "d": [1.5]}}, settings, free=frozenset())


def test_each_difference_is_named_and_what_is_free_is_not():
    old = {"a": 1, "b": {"c": 2, "minutes": 3}, "gone": 0}
    new = {"a": 1, "b": {"c": 5, "minutes": 4}, "new": 7}
    assert differences(old, new, free=frozenset({"minutes"})) == (
        "b.c: the run has 2, asked for is 5; gone: the run has 0, asked for is None; "
        "new: the run has None, asked for is 7"
    )
