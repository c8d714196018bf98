"""What is done to every tensor of a state at once.

A state is a tensor, or a tuple or NamedTuple of states; whatever else it holds (None, a number) is
kept as it is. The first axis of every tensor is the batch.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from jaxtyping import Int
from torch import Tensor

State = TypeVar("State")


def map_tensors(function: Callable[[Tensor], Tensor], state: State) -> State:
    """Apply ``function`` to each tensor of a state.

    >>> import torch
    >>> map_tensors(lambda t: t + 1, (torch.zeros(2), None, 3))
    (tensor([1., 1.]), None, 3)
    """
    changed: Any = state
    if isinstance(state, Tensor):
        changed = function(state)
    elif isinstance(state, tuple):
        parts = [map_tensors(function, part) for part in state]
        changed = type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    return changed


def select_rows(state: State, index: Int[Tensor, " new_batch"]) -> State:
    """The rows ``index`` of a state, in that order; a row may be taken several times.

    >>> import torch
    >>> select_rows((torch.tensor([[5], [6], [7]]),), torch.tensor([2, 0, 0]))
    (tensor([[7],
            [5],
            [5]]),)
    """
    return map_tensors(lambda tensor: tensor.index_select(0, index), state)


def detach(state: State) -> State:
    """The same state without its past: gradients stop here.

    For networks that carry their state from batch to batch (the stateful RNN).
    """
    return map_tensors(Tensor.detach, state)


def tensors_of(state: Any) -> list[Tensor]:
    """Every tensor of a state, in the order of its fields.

    >>> import torch
    >>> [len(tensor) for tensor in tensors_of((torch.zeros(2), (None, torch.zeros(3))))]
    [2, 3]
    """
    if isinstance(state, Tensor):
        return [state]
    parts = state if isinstance(state, tuple) else ()
    return [tensor for part in parts for tensor in tensors_of(part)]


def replace_rows(state: State, index: Int[Tensor, " some"], rows: State) -> State:
    """The state with its rows ``index`` replaced by those of another, which has only these.

    >>> import torch
    >>> replace_rows(torch.tensor([5, 6, 7]), torch.tensor([2, 0]), torch.tensor([1, 9]))
    tensor([9, 6, 1])
    """
    new = iter(tensors_of(rows))
    return map_tensors(lambda tensor: tensor.index_copy(0, index, next(new)), state)
