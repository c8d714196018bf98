"""Which form of an operation runs: the plain one, or a fast one with a gradient of its own.

A system shows the equations of its paper in plain PyTorch. Where a fast form exists, a line above
them chooses it::

    if is_fast():
        return weights_by_hand(scores, mask)
    return filled.softmax(-1) * mask

so that both stand in sight of each other. Any system can be run in its plain form: the tests do, to
compare both, and so can anyone who steps through the equations in a debugger.
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
    """Run the plain form of everything inside, as the papers write it and with torch's gradients.

    >>> with plain_forms():
    ...     is_fast()
    False
    """
    token = _IS_PLAIN.set(True)
    try:
        yield
    finally:
        _IS_PLAIN.reset(token)


# Under `torch.autocast` some tensors have 16 bits and some 32. Torch's operators cast them as they
# need it, on the way back, too; an operation whose gradient is written by hand would mix them.


def apply_unrounded(operation: type[Function], *inputs: Any) -> Any:
    """``operation.apply``, which under autocast sees all numbers with 32 bits.

    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return 2 * x
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     apply_unrounded(Double, torch.ones(2, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    device = next(each.device.type for each in inputs if isinstance(each, Tensor))
    if not torch.is_autocast_enabled(device):
        return operation.apply(*inputs)
    with torch.autocast(device, enabled=False):
        return operation.apply(*(whole(x) if isinstance(x, Tensor) else x for x in inputs))


def whole(x: Tensor) -> Tensor:
    """Numbers of 16 bits with 32; any others as they are.

    >>> whole(torch.ones(1, dtype=torch.float16)).dtype, whole(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
