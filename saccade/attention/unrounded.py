"""Operations with a gradient of their own, where matrix products are rounded.

Under `torch.autocast` some tensors have 16 bits and some 32. Torch's operators cast them as they
need it, on the way back, too; an operation whose gradient is written by hand would mix them.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


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
        return operation.apply(*map(whole, inputs))


def whole(x: Any) -> Any:
    """A tensor of 16-bit numbers with 32; anything else as it is.

    >>> whole(torch.ones(1, dtype=torch.float16)).dtype, whole(None)
    (torch.float32, None)
    """
    is_half = isinstance(x, Tensor) and x.dtype in (torch.bfloat16, torch.float16)
    return x.float() if is_half else x
