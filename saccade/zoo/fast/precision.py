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
        return operation.apply(*(whole(x) if isinstance(x, Tensor) else x for x in inputs))


def whole(x: Tensor) -> Tensor:
    """Numbers of 16 bits with 32; any others as they are.

    >>> whole(torch.ones(1, dtype=torch.float16)).dtype, whole(torch.ones(1).double()).dtype
    (torch.float32, torch.float64)
    """
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
