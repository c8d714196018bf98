import pytest

import saccade.metrics
import saccade.tasks


@pytest.mark.parametrize("name", saccade.tasks.__all__)
def test_every_public_name_of_tasks_can_be_had(name):
    assert getattr(saccade.tasks, name) is not None


def test_public_names_of_tasks_are_listed_once():
    listed = [name for names in saccade.tasks._MODULES.values() for name in names]
    assert sorted(listed) == sorted(saccade.tasks.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        saccade.tasks.nonsense  # noqa: B018


@pytest.mark.parametrize("name", saccade.metrics.__all__)
def test_a_metric_is_a_function_and_not_its_module(name):
    assert getattr(saccade.metrics, name).__class__.__name__ != "module"
