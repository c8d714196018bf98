"""Hooks that are gone when their ``with`` block ends, whatever happens inside.

They are made for every layer of every run. Functions inside functions would do, but under the
tests' checker of shapes each of them is compiled anew: hooks are partial functions instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


def on_input(module: nn.Module, keep: Callable[[Any], None]) -> RemovableHandle:
    """Call ``keep`` with the first input of the module, each time it runs.

    >>> seen = []
    >>> layer = nn.Identity()
    >>> with on_input(layer, seen.append):
    ...     _ = layer(1)
    >>> _ = layer(2)
    >>> seen
    [1]
    """
    return module.register_forward_pre_hook(partial(_input_to, keep), with_kwargs=True)


def _input_to(
    keep: Callable[[Any], None], _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    keep(args[0] if args else kwargs.get("hidden_states"))


def on_output(module: nn.Module, keep: Callable[[Any], None]) -> RemovableHandle:
    """Call ``keep`` with the output of the module (the first of several)."""
    return module.register_forward_hook(partial(_output_to, keep))


def _output_to(keep: Callable[[Any], None], _: nn.Module, __: tuple[Any, ...], output: Any) -> None:
    keep(output[0] if isinstance(output, tuple | list) else output)


def keep_in(into: dict[Any, Tensor], key: Any) -> Callable[[Any], None]:
    """What to give `on_input` or `on_output` to find the last tensor in a dict."""
    return partial(_keep_tensor, into, key)


def _keep_tensor(into: dict[Any, Tensor], key: Any, tensor: Any) -> None:
    if isinstance(tensor, Tensor):
        into[key] = tensor


def added_to(module: nn.Module, amount: Tensor) -> RemovableHandle:
    """Add ``amount`` to whatever the module writes."""
    return module.register_forward_hook(partial(_add, amount))


def _add(amount: Tensor, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
    return output + amount.to(output).view(output.shape)
