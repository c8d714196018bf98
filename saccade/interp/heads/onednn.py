"""Matrix products of a model by oneDNN instead of MKL, where that is faster.

On a processor with AVX-512 that is not Intel's, MKL computes products of float32 with AVX2 only;
oneDNN, which torch ships as well, takes half the time (`bench/effects.py` prints the ratio). Both
multiply and add in float32. Nothing else changes: the products are torch's own operator, the one
that torch.compile calls on a CPU.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode


def product(
    x: Float[Tensor, "*batch d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "*batch d_out"]:
    """``x @ weight.T + bias``, without a gradient.

    >>> x, weight = torch.randn(2, 3, 5), torch.randn(7, 5)
    >>> torch.allclose(product(x, weight), x @ weight.T, atol=1e-5)
    True
    """
    if _fits(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return linear(x, weight, bias)


def fast_products() -> AbstractContextManager[object]:
    """A context in which the linear layers of a model use `product`."""
    return _Products() if _is_faster() else nullcontext()


class _Products(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is linear and len(args) >= 2 and _fits(args[0], args[1]):
            return product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _fits(x: Any, weight: Any) -> bool:
    return (
        type(weight) in (Tensor, torch.nn.Parameter)  # quantised weights are classes of their own
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and not torch.is_grad_enabled()
        and _is_faster()
    )


@cache
def _is_faster() -> bool:
    """Whether torch has oneDNN, and MKL leaves half of the vector unit unused."""
    is_there = torch.backends.mkldnn.is_available()
    return is_there and torch.backends.cpu.get_cpu_capability() == "AVX512" and not _is_intel()


def _is_intel() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return "GenuineIntel" in file.read(4096)
    except OSError:
        return True  # unknown: MKL, as everywhere else
