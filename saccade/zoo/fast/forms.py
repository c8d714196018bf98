"""Choice between the plain form of an operation and a fast form with a hand-written gradient.

A model shows the equations of its paper in plain PyTorch. Where a fast form exists, the line above
the equations selects it::

    if is_fast():
        return weights_by_hand(scores, mask)
    return filled.softmax(-1) * mask

so both forms are visible in one place. Any model can run in its plain form: the tests compare the
two, and the plain form is the one to step through in a debugger.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_IS_PLAIN: ContextVar[bool] = ContextVar("is_plain", default=False)


def is_fast() -> bool:
    """True unless `plain_forms` is in effect.

    >>> is_fast()
    True
    """
    return not _IS_PLAIN.get()


@contextmanager
def plain_forms() -> Iterator[None]:
    """Run every operation in its plain form, as in the papers, with gradients by autograd.

    >>> with plain_forms():
    ...     is_fast()
    False
    """
    token = _IS_PLAIN.set(True)
    try:
        yield
    finally:
        _IS_PLAIN.reset(token)


# Under `torch.autocast` some tensors have 16 bits and some 32. PyTorch's operators cast their
# inputs, forward and backward; an operation with a hand-written gradient would mix the two.


def without_autocast(like: Tensor) -> torch.autocast:
    """A context in which products keep full precision, also under autocast (`precision`).

    bfloat16 has 8 bits: near the edge of 100 pixels it resolves a location to a fifth of a pixel.
    """
    return torch.autocast(like.device.type, enabled=False)


def apply_upcast(operation: type[Function], *inputs: Any) -> Any:
    """``operation.apply`` with all inputs cast to 32 bits under autocast.

    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     apply_upcast(Double, torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    device = next(each.device.type for each in inputs if isinstance(each, Tensor))
    if not torch.is_autocast_enabled(device):
        return operation.apply(*inputs)
    with torch.autocast(device, enabled=False):
        return operation.apply(*(upcast(x) if isinstance(x, Tensor) else x for x in inputs))


def upcast(x: Tensor) -> Tensor:
    """A 16-bit tensor as float32; any other tensor unchanged.

    >>> upcast(torch.ones(1, dtype=torch.float16)).dtype, upcast(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
