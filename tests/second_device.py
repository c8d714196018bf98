"""A second device, simulated on the CPU, so that a missing `.to(device)` fails without a GPU.

Its tensors report the device ``lazy`` and wrap an ordinary tensor. An operation on tensors of both
devices is refused as on a GPU; the CPU computes everything else.

Of torch's device names, ``lazy`` is the one that no build supports, whose gradients are computed in
the calling thread, and that transformers and accelerate do not treat specially (unlike ``meta``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy")
HERE = torch.device("cpu")
META = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
# A GPU tensor accepts indices on the CPU, but a CPU tensor accepts none on a GPU.
INDEXED = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
}


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

    # Lists of indices become tensors on the second device, as on a GPU.
    def __getitem__(self, at):
        return super().__getitem__(_indices(at))

    def __setitem__(self, at, value) -> None:
        super().__setitem__(_indices(at), value)

    # torch refuses these two for any tensor subclass.
    def tolist(self):
        return self._here.tolist()

    def new_tensor(self, data, **how):
        return torch.tensor(data, dtype=how.get("dtype", self.dtype)).to(DEVICE)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if _is_composite(func):
            return func.decompose(*args, **(kwargs or {}))
        return _do(func, args, kwargs or {})[0]


def _indices(at):
    if isinstance(at, tuple):
        return tuple(map(_indices, at))
    return torch.tensor(list(at)).to(DEVICE) if isinstance(at, list | range) else at


class SecondDevice(TorchDispatchMode):
    """Creates tensors on the requested device: ``torch.zeros(..., device=DEVICE)``."""

    def __init__(self) -> None:
        super().__init__()
        self.n_done = 0
        """Number of operations on the second device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _is_composite(func):  # only without gradients: otherwise torch decomposes it
            with self:
                return func.decompose(*args, **(kwargs or {}))
        out, on_second = _do(func, args, kwargs or {})
        self.n_done += on_second
        return out


@cache
def _is_composite(func) -> bool:
    return func._can_decompose()


class Given:
    """The arguments of an operation, unwrapped for the CPU, and which devices they are on."""

    def __init__(self, args, kwargs) -> None:
        self.here = self.has_generator = False
        self.there: dict[int, Elsewhere] = {}  # by the id of the wrapped tensor
        self.args = [self._inside(each) for each in args]
        self.kwargs = {name: self._inside(each) for name, each in kwargs.items()}

    def _inside(self, given):
        if isinstance(given, Elsewhere):
            self.there[id(given._here)] = given
            return given._here
        if isinstance(given, Tensor):
            self.here |= given.dim() > 0  # a scalar may go with tensors of any device
        elif isinstance(given, list | tuple):  # torch's tree_map takes five times as long
            return [self._inside(each) for each in given]
        self.has_generator |= isinstance(given, torch.Generator)
        return given

    def outside(self, out):
        """Wrap a result for the second device; an in-place operation returns its own tensor."""
        if isinstance(out, Tensor):
            if id(out) in self.there:
                return self.there[id(out)]
            # The wrapper has no lazy conjugate or negative bit, and in inference mode torch
            # refuses views of tensors that were created outside of it.
            with torch.inference_mode(mode=False):
                return Elsewhere(out.resolve_conj().resolve_neg())
        return type(out)(map(self.outside, out)) if isinstance(out, list | tuple) else out


def _do(func, args, kwargs):
    """Run an operation; returns the result and whether it is on the second device."""
    given, asked = Given(args, kwargs), kwargs.get("device")
    is_indexed = func in INDEXED and isinstance(args[0], Elsewhere)
    checked = Given([args[0], *args[2:]], kwargs) if is_indexed else given
    if checked.there and checked.here and func not in COPIES:
        raise RuntimeError(f"{func}: expected all tensors on the same device, found two")
    on_second = bool(given.there) if asked is None else torch.device(asked) == DEVICE
    if on_second and given.has_generator:
        raise RuntimeError(f"{func}: expected a generator of the second device, found the CPU's")
    if asked is not None:
        given.kwargs["device"] = HERE
    out = func(*given.args, **given.kwargs)
    if func is torch.ops.aten.copy_.default:
        return args[0], on_second
    if torch.Tag.inplace_view in func.tags and on_second:  # transpose_: also transpose the wrapper
        size, stride, start = out.size(), out.stride(), out.storage_offset()
        torch.ops.aten.as_strided_.default.redispatch(META, args[0], size, stride, start)
    return (given.outside(out) if on_second else out), on_second


@contextmanager
def second_device() -> Iterator[SecondDevice]:
    """Enable the second device, also where torch looks devices up by name."""
    begin, is_enabled = torch.autocast.__init__, torch.is_autocast_enabled

    def known(name: str) -> str:
        return HERE.type if name == DEVICE.type else name

    optimizer = sys.modules["torch.optim.optimizer"]  # torch.optim does not export it
    fused = [*optimizer._get_fused_kernels_supported_devices(), DEVICE.type]
    with pytest.MonkeyPatch.context() as patch, SecondDevice() as device:
        patch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: fused)
        # These two create their tensor without calling the mode.
        for name in ("tensor", "as_tensor"):
            patch.setattr(torch, name, _made_here_first(getattr(torch, name)))
        patch.setattr(
            torch.autocast, "__init__", lambda self, name, **how: begin(self, known(name), **how)
        )
        patch.setattr(torch, "is_autocast_enabled", lambda name: is_enabled(known(name)))
        yield device


def _made_here_first(make):
    def made(data, *, device=None, **how):
        found = make(data, **how)
        return found if device is None else found.to(device)

    return made


def assert_same(found, wanted, where: str = "it") -> None:
    """Equal numbers, tensors, or trees of them, up to device and rounding."""
    if is_dataclass(wanted) and not isinstance(wanted, type):
        assert type(found) is type(wanted), where
        for field in fields(wanted):
            one, other = getattr(found, field.name), getattr(wanted, field.name)
            assert_same(one, other, f"{where}.{field.name}")
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), where
        for key, value in wanted.items():
            assert_same(found[key], value, f"{where}.{key}")
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str | bytes):
        assert len(found) == len(wanted), where
        for at, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_same(one, other, f"{where}[{at}]")
    elif isinstance(wanted, Tensor):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-4)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-3, abs=1e-4, nan_ok=True), where
    else:
        assert found == wanted, where
