"""Back-propagation through time, every equation written out."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class TinyRnn(NamedTuple):
    """The weights of ``h(t) = tanh(z(t))`` with ``z(t) = U x(t) + W h(t-1)``, ``y = tanh(V h)``."""

    u: Float[Tensor, "d_hidden d_input"]
    v: Float[Tensor, "d_output d_hidden"]
    w: Float[Tensor, "d_hidden d_hidden"]


class Run(NamedTuple):
    """What the forward pass leaves for the backward pass."""

    h: Float[Tensor, "pos batch d_hidden"]
    y: Float[Tensor, "pos batch d_output"]


def forward(rnn: TinyRnn, x: Float[Tensor, "pos batch d_input"]) -> Run:
    """Unroll the network from a state of zeros."""
    h = x.new_zeros(x.shape[1], len(rnn.w))
    hidden = []
    for step in x:
        z = step @ rnn.u.T + h @ rnn.w.T
        h = torch.tanh(z)
        hidden.append(h)
    stacked = torch.stack(hidden)
    return Run(stacked, torch.tanh(stacked @ rnn.v.T))


def squared_error(
    y: Float[Tensor, "pos batch d_output"], target: Float[Tensor, "pos batch d_output"]
) -> Float[Tensor, ""]:
    """``L = 1/2 sum (y - target)^2``."""
    return 0.5 * (y - target).square().sum()


def backward(
    rnn: TinyRnn,
    x: Float[Tensor, "pos batch d_input"],
    run: Run,
    *,
    target: Float[Tensor, "pos batch d_output"],
) -> TinyRnn:
    """The gradient of `squared_error` for each weight, without autograd.

    With a bar for "the derivative of L by", and t from the last step to the first::

        y_bar(t) = dL/dy(t)
        r_bar(t) = y_bar(t) * phi'(r(t))
        h_bar(t) = V^T r_bar(t) + W^T z_bar(t+1)
        z_bar(t) = h_bar(t) * phi'(z(t))

        U_bar = sum_t z_bar(t) x(t)^T
        V_bar = sum_t r_bar(t) h(t)^T
        W_bar = sum_t z_bar(t+1) h(t)^T

    phi is tanh, so ``phi'(z) = 1 - h^2`` and ``phi'(r) = 1 - y^2``. Nothing comes back from beyond
    the last step, and the state before the first is zero, so W gets nothing from there.
    """
    u_bar, v_bar, w_bar = (torch.zeros_like(weight) for weight in rnn)
    z_bar_next = torch.zeros_like(run.h[0])
    for t in reversed(range(len(x))):
        h, y = run.h[t], run.y[t]
        y_bar = y - target[t]
        r_bar = y_bar * (1 - y**2)
        h_bar = r_bar @ rnn.v + z_bar_next @ rnn.w
        z_bar = h_bar * (1 - h**2)
        u_bar += z_bar.T @ x[t]
        v_bar += r_bar.T @ h
        w_bar += z_bar_next.T @ h
        z_bar_next = z_bar
    return TinyRnn(u_bar, v_bar, w_bar)
