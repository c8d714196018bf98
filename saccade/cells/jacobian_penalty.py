"""A penalty on gradients that grow or fade on their way through time."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.cells.cell import Cell
from saccade.cells.recording import Recorded
from saccade.cells.state import map_tensors, tensors_of

# Below this an error signal has vanished: what becomes of it in one step more says nothing.
NOTHING = 1e-30


class JacobianPenalty(NamedTuple):
    """How far the steps are from keeping the length of the error signal."""

    penalty: Float[Tensor, ""]
    """Omega: the mean over the rows of the sum over the steps; add it to the loss."""
    ratios: Float[Tensor, "batch pos"]
    """By what factor each step changes the length, going back. 1 is wanted, NaN: no signal."""


def jacobian_penalty(
    cell: Cell,
    inputs: Float[Tensor, "batch pos d_input"],
    recorded: Recorded,
    *,
    loss: Float[Tensor, ""],
) -> JacobianPenalty:
    """How much each step's Jacobian stretches the error signal that really passes through it.

    Pascanu, Mikolov and Bengio, 2013 (https://arxiv.org/abs/1211.5063), equation 9, with s for the
    state and E for the loss::

        Omega = sum_k ( |dE/ds_(k+1) ds_(k+1)/ds_k| / |dE/ds_(k+1)| - 1 )^2

    A quotient of two lengths, not the length of a quotient. It asks for a Jacobian that keeps
    lengths in the one direction that matters, and so for singular values near one, not for a
    determinant of one. As in the paper (equation 10) only the step itself is differentiated again:
    states and error signals count as constants. All steps of all rows are taken through the cell
    together, as one batch. With a state of several tensors, lengths are those of all of them
    together.

    Args:
        recorded: From `record`; the loss must come from its outputs.
    """
    signals = _signals(loss, recorded.states[1:])
    before = _together(recorded.states[:-1])
    before = map_tensors(_as_start, before)
    after = cell.step(inputs.detach().transpose(0, 1).flatten(0, 1), before).state
    starts = [tensor for tensor in tensors_of(before) if tensor.is_floating_point()]
    ends = [tensor for tensor in tensors_of(after) if tensor.is_floating_point()]
    back = torch.autograd.grad(ends, starts, signals, create_graph=True, materialize_grads=True)
    arrived, sent = _squares(back), _squares(signals)
    is_there = sent > NOTHING
    ratio = (arrived / sent.where(is_there, 1.0)).clamp_min(NOTHING).sqrt()
    terms = torch.where(is_there, (ratio - 1).square(), 0.0)
    batch, pos = inputs.shape[:2]
    ratios = ratio.detach().where(is_there, torch.nan).view(pos, batch).T
    return JacobianPenalty(terms.sum() / batch, ratios)


def _signals(loss: Tensor, states: list[Any]) -> list[Tensor]:
    """dE/ds for every tensor of the state, all steps together: [pos * batch, ...]."""
    leaves = [[t for t in tensors_of(state) if t.is_floating_point()] for state in states]
    flat = [tensor for state in leaves for tensor in state]
    grads = torch.autograd.grad(loss, flat, retain_graph=True, materialize_grads=True)
    n = len(leaves[0])
    return [torch.cat(grads[place::n]) for place in range(n)]


def _together(states: list[Any]) -> Any:
    """Many states as one, their rows one after the other."""
    rows = iter(zip(*(tensors_of(state) for state in states), strict=True))
    return map_tensors(lambda _: torch.cat(next(rows)), states[0])


def _as_start(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def _squares(tensors: Any) -> Float[Tensor, " n"]:
    return sum((tensor.square().flatten(1).sum(1) for tensor in tensors), start=torch.zeros(()))
