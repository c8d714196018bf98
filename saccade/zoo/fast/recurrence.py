"""Recurrent loops with a hand-written gradient of the whole loop, and one activation function.

In a loop autograd accumulates the gradients of the weights step by step. Here each is one product
after the last step.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from saccade.zoo.fast.forms import apply_upcast
from saccade.zoo.fast.soft_attention import StepMemory, look, look_back

# A GRU that attends before each step.


class AttendedStates(NamedTuple):
    """States and contexts of all steps."""

    states: Float[Tensor, "batch pos d_hidden"]
    contexts: Float[Tensor, "batch pos d_value"]


class AttendingGruWeights(NamedTuple):
    """The matrices of a GRU's gates, in torch's order, and of an additive score."""

    of_state: Float[Tensor, "d_gates d_hidden"]
    state_bias: Float[Tensor, " d_gates"]
    of_context: Float[Tensor, "d_gates d_value"]
    of_query: Float[Tensor, "d_score d_hidden"]
    """From the state to the query."""
    v: Float[Tensor, "1 d_score"]


def attending_gru(
    projected: Float[Tensor, "pos batch d_gates"],
    memory: StepMemory,
    hidden: Float[Tensor, "batch d_hidden"],
    *,
    weights: AttendingGruWeights,
) -> AttendedStates:
    """For each input: attend with the previous state, then step from input and context.

    It takes two thirds of the plain loop's time. The query and the recurrent part of the gates are
    one product; so are, after the last step, the gradients of each weight, of the values and of v.

    Plain form: `saccade.zoo.models.bahdanau.BahdanauTranslator.attend_and_update`.

    Args:
        projected: The inputs' part of the gates.
    """
    no_bias = weights.state_bias.new_zeros(len(weights.of_query))
    states, contexts = apply_upcast(
        _AttendingGru,
        projected,
        hidden,
        *memory,
        torch.cat([weights.of_state, weights.of_query]),
        torch.cat([weights.state_bias, no_bias]),
        weights.v[0],
        weights.of_context,
    )
    return AttendedStates(states.transpose(0, 1), contexts.transpose(0, 1))


class _AttendingGru(Function):
    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917  autograd takes tensors one by one
        ctx: Any,
        words: Float[Tensor, "pos batch d_gates"],
        hidden: Float[Tensor, "batch d_hidden"],
        keys: Float[Tensor, "batch key_pos d_score"],
        values: Float[Tensor, "batch key_pos d_value"],
        mask: Bool[Tensor, "batch key_pos"],
        exponentials: Float[Tensor, "batch key_pos d_score"] | None,
        of_state: Float[Tensor, "d_gates_and_score d_hidden"],
        state_bias: Float[Tensor, " d_gates_and_score"],
        v: Float[Tensor, " d_score"],
        of_context: Float[Tensor, "d_gates d_value"],
    ) -> tuple[Tensor, Tensor]:
        n, batch, d_gates = words.shape
        d = d_gates // 3
        memory = StepMemory(keys, values, mask, exponentials)
        states = words.new_empty(n + 1, batch, d)
        contexts = words.new_empty(n, batch, values.shape[2])
        states[0] = hidden
        steps: list[Tensor] = []
        for t in range(n):
            before = torch.addmm(state_bias, states[t], of_state.T)
            looked = look(before[:, d_gates:], memory, v=v)
            contexts[t] = looked.context[:, 0]
            after = torch.addmm(words[t], contexts[t], of_context.T)
            gates = (after[:, : 2 * d] + before[:, : 2 * d]).sigmoid_()  # reset, update
            offered = before[:, 2 * d : d_gates]
            candidate = torch.addcmul(after[:, 2 * d :], gates[:, :d], offered).tanh_()
            torch.lerp(candidate, states[t], gates[:, d:], out=states[t + 1])
            steps += [looked.squashed, looked.weights, gates, offered, candidate]
        ctx.save_for_backward(states, contexts, keys, values, of_state, v, of_context, *steps)
        return states[1:], contexts

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        to_states, to_contexts = gradients
        states, contexts, keys, values, of_state, v, of_context, *steps = ctx.saved_tensors
        n, batch, d = to_states.shape
        d_gates = 3 * d
        for_words = states.new_empty(n, batch, d_gates)
        for_before = states.new_empty(n, batch, len(of_state))
        for_context = torch.empty_like(contexts)
        all_weights = states.new_empty(n, *keys.shape[:2])
        for_v, for_keys = torch.zeros_like(v), torch.zeros_like(keys)
        carried = torch.zeros_like(states[0])
        of_v = 4 * v  # tanh'(x) is 4 s (1 - s) with s = sigmoid(2 x)
        for t in reversed(range(n)):
            squashed, weights, gates, offered, candidate = steps[5 * t : 5 * t + 5]
            to_hidden = carried + to_states[t]
            to_gates, to_before = for_words[t], for_before[t]
            carried = _gru_slopes(
                to_hidden, states[t], gates, offered, candidate, to_gates, to_before[:, :d_gates]
            )
            to_context = torch.addmm(to_contexts[t], to_gates, of_context, out=for_context[t])
            to_weights = torch.bmm(to_context[:, None], values.mT)
            slopes = look_back(to_weights, weights=weights, squashed=squashed)
            for_v += slopes.scores.flatten() @ squashed.flatten(0, 1)
            torch.mul(slopes.sums.sum(1), of_v, out=to_before[:, d_gates:])
            for_keys += slopes.sums
            carried.addmm_(to_before, of_state)
            all_weights[t] = weights[:, 0]
        flat = for_before.flatten(0, 1)
        return (
            for_words,
            carried,
            for_keys.mul_(of_v),
            torch.bmm(all_weights.permute(1, 2, 0), for_context.transpose(0, 1)),
            None,
            None,
            flat.T @ states[:-1].flatten(0, 1),
            flat.sum(0),
            2 * for_v,
            for_words.flatten(0, 1).T @ contexts.flatten(0, 1),
        )


def _gru_slopes(
    to_hidden: Tensor,
    hidden: Tensor,
    gates: Tensor,
    offered: Tensor,
    candidate: Tensor,
    to_gates: Tensor,
    to_before: Tensor,
) -> Tensor:
    """Fill in the gradients of a step's inputs and recurrent part; return that of its state.

    For ``h' = u h + (1 - u) c``, ``c = tanh(x_c + r o)``, with sigmoids r and u of sums x + o.
    """
    d = hidden.shape[1]
    reset, update = gates[:, :d], gates[:, d:]
    passed = to_hidden * update
    to_candidate = (to_hidden - passed) * (1 - candidate * candidate)
    slopes = gates - gates * gates
    torch.mul(to_candidate * offered, slopes[:, :d], out=to_gates[:, :d])
    torch.mul(to_hidden * (hidden - candidate), slopes[:, d:], out=to_gates[:, d : 2 * d])
    to_gates[:, 2 * d :] = to_candidate
    to_before[:, : 2 * d] = to_gates[:, : 2 * d]
    torch.mul(to_candidate, reset, out=to_before[:, 2 * d :])
    return passed


# A GRU whose update gate is an attention weight.


def attention_gru(
    projected: Float[Tensor, "batch fact d_gates"],
    weights: Float[Tensor, "batch fact"],
    *,
    of_state: Float[Tensor, "d_gates d_hidden"],
    bias: Float[Tensor, " d_gates"],
) -> Float[Tensor, "batch d_hidden"]:
    """The state after the last fact, in a third of the plain loop's time.

    Plain form: `saccade.zoo.cells.gru.AttentionGru.forward`.
    """
    return apply_upcast(_AttentionGru, projected, weights, of_state, bias)


class _AttentionGru(Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, weights: Tensor, of_state: Tensor, bias: Tensor
    ) -> Tensor:
        batch, n, d = *projected.shape[:2], of_state.shape[1]
        by_fact, gates = projected.transpose(0, 1), weights.T[:, :, None]
        states = projected.new_zeros(n + 1, batch, d)
        steps: list[Tensor] = []
        for i in range(n):
            own = torch.addmm(bias, states[i], of_state.T)
            reset = (by_fact[i, :, :d] + own[:, :d]).sigmoid_()
            candidate = torch.addcmul(by_fact[i, :, d:], reset, own[:, d:]).tanh_()
            torch.lerp(states[i], candidate, gates[i], out=states[i + 1])
            steps += [own[:, d:], reset, candidate]
        ctx.save_for_backward(weights, of_state, states, *steps)
        return states[n].clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  the decorator hides names
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        weights, of_state, states, *steps = ctx.saved_tensors
        gates, to_hidden = weights.T[:, :, None], gradients[0]
        n, batch, d = len(states) - 1, *to_hidden.shape
        for_projected = states.new_empty(n, batch, 2 * d)
        for_own = states.new_empty(n, batch, 2 * d)
        for_weights = states.new_empty(n, batch)
        for i in reversed(range(n)):
            offered, reset, candidate = steps[3 * i : 3 * i + 3]
            torch.sum(to_hidden * (candidate - states[i]), 1, out=for_weights[i])
            taken = to_hidden * gates[i]
            to_candidate = torch.ops.aten.tanh_backward(taken, candidate)
            to_reset = torch.ops.aten.sigmoid_backward(to_candidate * offered, reset)
            for_projected[i, :, :d] = for_own[i, :, :d] = to_reset
            for_projected[i, :, d:] = to_candidate
            torch.mul(to_candidate, reset, out=for_own[i, :, d:])
            to_hidden = torch.addmm(to_hidden - taken, for_own[i], of_state)
        flat = for_own.flatten(0, 1)
        return (
            for_projected.transpose(0, 1),
            for_weights.T,
            flat.T @ states[:-1].flatten(0, 1),
            flat.sum(0),
        )


# The activation function of a unitary network.


def scaled_modulus(
    total: Float[Tensor, "batch d_hidden"], bias: Float[Tensor, " n"], epsilon: float
) -> Float[Tensor, "batch d_hidden"]:
    """The modReLU in half of autograd's operations, which are most of a step of the network.

    Plain form: `saccade.zoo.cells.unitary.modrelu`.

    Args:
        epsilon: Added to the squared modulus.
    """
    return _ModRelu.apply(total, bias, epsilon)  # pyright: ignore[reportReturnType]


class _ModRelu(Function):
    @staticmethod
    def forward(ctx: Any, total: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(total, bias)
        ctx.epsilon = epsilon
        pairs = total.unflatten(1, (2, -1))  # [batch, 2, n]
        scale = torch.addcmul(bias.new_ones(()), bias, _inverse(pairs, epsilon)).relu_()
        return (pairs * scale[:, None]).flatten(1)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        # Everything is recomputed from the inputs, so that second derivatives are correct, too.
        (grad,), (total, bias) = grad_outputs, ctx.saved_tensors
        pairs, grads = total.unflatten(1, (2, -1)), grad.unflatten(1, (2, -1))
        inverse = _inverse(pairs, ctx.epsilon)
        scale = torch.addcmul(bias.new_ones(()), bias, inverse).relu()
        to_bias = (grads * pairs).sum(1) * (scale > 0) * inverse  # [batch, n]
        # scale = 1 + bias * inverse, and d inverse / d pair = -inverse^3 * pair
        along = pairs * (to_bias * bias * inverse.square())[:, None]
        return (grads * scale[:, None] - along).flatten(1), to_bias.sum(0), None


def _inverse(pairs: Float[Tensor, "batch 2 n"], epsilon: float) -> Float[Tensor, "batch n"]:
    return (pairs.square().sum(1) + epsilon).rsqrt()
