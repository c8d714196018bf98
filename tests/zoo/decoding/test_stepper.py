"""What a stepper is, and what its state must hold."""

from typing import NamedTuple

import pytest
import torch
from steppers import Markov, Reader

from saccade.zoo.decoding.stepper import Stepper, first_tensor


class Nested(NamedTuple):
    nothing: None
    inside: tuple[int, torch.Tensor]


def test_models_need_no_base_class_to_be_steppers():
    assert isinstance(Reader(), Stepper)
    assert isinstance(Markov(torch.ones(2, 2)), Stepper)
    assert not isinstance(torch.nn.Linear(2, 3), Stepper)


def test_the_first_tensor_is_found_however_deep():
    tensor = torch.zeros(5, 2)
    assert first_tensor(tensor) is tensor
    assert first_tensor(Nested(None, (3, tensor))) is tensor


def test_a_state_without_a_tensor_is_a_bug_of_the_model():
    with pytest.raises(AssertionError, match="a state must hold a tensor"):
        first_tensor((None, ()))
