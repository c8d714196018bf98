"""What the tests of fast forms share: a call in both forms, its values and all its gradients."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction


class Run(NamedTuple):
    values: list[Tensor]
    gradients: list[Tensor]
    has_hand_written: bool


def has_hand_written(values: Sequence[Tensor]) -> bool:
    """True if a gradient written in Python is on the way from values to what they are made of."""
    seen, left = set(), [value.grad_fn for value in values]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction):
            return True
        seen.add(node)
        left += [before for before, _ in node.next_functions]
    return False


def run(call: Callable[..., Tensor | tuple[Tensor, ...]], leaves: Sequence[Tensor]) -> Run:
    torch.manual_seed(11)
    found = call(*leaves)
    values = [found] if isinstance(found, Tensor) else list(found)
    learnt = [value for value in values if value.requires_grad]
    torch.manual_seed(12)
    # Not randn_like: it fills a transposed tensor in another order.
    upstream = [torch.randn(value.shape, dtype=value.dtype) for value in learnt]
    return Run(
        [value.detach() for value in values],
        list(torch.autograd.grad(learnt, list(leaves), upstream, materialize_grads=True)),
        has_hand_written(learnt),
    )


@pytest.fixture
def assert_forms_agree():
    """Both forms of a call give the same values and gradients, and are not the same form."""
    from saccade.zoo.fast.forms import plain_forms

    def check(call, leaves, **tolerances):
        fast = run(call, leaves)
        with plain_forms():
            plain = run(call, leaves)
        assert fast.has_hand_written and not plain.has_hand_written
        assert any(gradient.any() for gradient in plain.gradients)
        torch.testing.assert_close(fast.values, plain.values, **tolerances)
        torch.testing.assert_close(fast.gradients, plain.gradients, **tolerances)

    return check
