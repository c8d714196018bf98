"""Hooks that are gone when their ``with`` block ends, whatever happens inside."""

from __future__ import annotations

from collections.abc import Callable
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

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        keep(args[0] if args else kwargs.get("hidden_states"))

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def on_output(module: nn.Module, keep: Callable[[Any], None]) -> RemovableHandle:
    """Call ``keep`` with the output of the module (the first of several)."""

    def hook(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
        keep(output[0] if isinstance(output, tuple | list) else output)

    return module.register_forward_hook(hook)


def keep_in(into: dict[Any, Tensor], key: Any) -> Callable[[Any], None]:
    """What to give `on_input` or `on_output` to find the last tensor in a dict."""

    def keep(tensor: Any) -> None:
        if isinstance(tensor, Tensor):
            into[key] = tensor

    return keep


def added_to(module: nn.Module, amount: Tensor) -> RemovableHandle:
    """Add ``amount`` to whatever the module writes."""

    def hook(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
        return output + amount.to(output).view(output.shape)

    return module.register_forward_hook(hook)
