"""A second device that is played on the CPU, so that a forgotten move fails without a GPU.

Tensors on it say that they are on ``meta`` and hold an ordinary tensor inside. An operation on
tensors of both devices is refused as a GPU refuses it; everything else is computed by the CPU.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

DEVICE = torch.device("meta")
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
HERE = torch.device("cpu")


class Elsewhere(Tensor):
    """A tensor on the second device."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Elsewhere:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: Tensor) -> None:
        self._here = inner

    def __repr__(self, **_: object) -> str:
        return f"Elsewhere({self._here!r})"

    # Numbers leave it as they leave a GPU; torch would refuse, because meta tensors have none.
    def tolist(self):
        return self._here.tolist()

    def item(self):
        return self._here.item()

    def __bool__(self) -> bool:
        return bool(self._here)

    def __int__(self) -> int:
        return int(self._here)

    def __float__(self) -> float:
        return float(self._here)

    __index__ = __int__

    def new_tensor(self, data, **how):
        return torch.tensor(data, dtype=how.get("dtype", self.dtype)).to(DEVICE)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


class SecondDevice(TorchDispatchMode):
    """Makes tensors where they are asked for: ``torch.zeros(..., device=DEVICE)``."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return dispatch(func, args, kwargs or {})


def dispatch(func, args, kwargs):
    leaves = tree_flatten((args, kwargs))[0]
    tensors = [each for each in leaves if isinstance(each, Tensor)]
    there = [each for each in tensors if isinstance(each, Elsewhere)]
    here = [each for each in tensors if not isinstance(each, Elsewhere) and each.dim() > 0]
    asked = kwargs.get("device")
    if there and here and func not in COPIES:
        raise RuntimeError(f"{func}: expected all tensors on the same device, found two")
    if func is torch.ops.aten._local_scalar_dense.default:
        return func(*[each._here if isinstance(each, Elsewhere) else each for each in args])
    plain_args, plain_kwargs = tree_map_only(Elsewhere, lambda x: x._here, (args, kwargs))
    if asked is not None:
        plain_kwargs = {**plain_kwargs, "device": HERE}
    out = func(*plain_args, **plain_kwargs)
    if func is torch.ops.aten.copy_.default:
        return args[0]
    if asked is not None:
        on_second = torch.device(asked).type == "meta"
    else:
        on_second = bool(there)
    if not on_second:
        return out
    # What an in-place operation returns is the tensor itself.
    known = {id(each._here): each for each in there}
    return tree_map_only(
        Tensor, lambda x: known.get(id(x)) if id(x) in known else Elsewhere(x), out
    )


def play(monkeypatch) -> None:
    """Let what torch knows of devices by name answer for the second one as for the CPU."""
    autocast, is_enabled = torch.autocast, torch.is_autocast_enabled

    def known(name: str) -> str:
        return HERE.type if name == DEVICE.type else name

    optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim does not name it
    fused = [*optimizer._get_fused_kernels_supported_devices(), DEVICE.type]
    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: fused)
    # These two make their tensor without asking the mode.
    for name in ("tensor", "as_tensor"):
        monkeypatch.setattr(torch, name, _made_here_first(getattr(torch, name)))
    monkeypatch.setattr(torch, "autocast", lambda name, **how: autocast(known(name), **how))
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda name: is_enabled(known(name)))


def _made_here_first(make):
    def made(data, *, device=None, **how):
        found = make(data, **how)
        return found if device is None else found.to(device)

    return made
