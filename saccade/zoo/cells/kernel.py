"""torch's own recurrent kernels: the weights inside, and sequences with padding through them."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.zoo.cells.cell import Cell, Unrolled, blank_padding, is_right_padded, last_step


class KernelWeights(NamedTuple):
    """One layer's, in the order in which torch's kernels take them."""

    of_input: Float[Tensor, "d_gates d_input"]
    of_state: Float[Tensor, "d_gates d_hidden"]
    input_bias: Float[Tensor, " d_gates"]
    state_bias: Float[Tensor, " d_gates"]


def weights_of(kernel: nn.RNNBase) -> KernelWeights:
    """The weights of a kernel's only layer."""
    return KernelWeights(*kernel.all_weights[0])


def run_kernel(
    cell: Cell,
    kernel: nn.RNN | nn.GRU,
    inputs: Float[Tensor, "batch pos d_input"],
    *,
    state: Float[Tensor, "batch d_hidden"],
    mask: Bool[Tensor, "batch pos"] | None,
) -> Unrolled:
    """Read sequences by the kernel of a cell whose state is what it puts out.

    Where the padding is not at the end, which kernels know nothing of, the cell steps by itself.
    """
    if mask is None:
        outputs, last = kernel(inputs, state[None])
        return Unrolled(outputs, last[0])
    if not is_right_padded(mask):
        return cell.loop(inputs, state, mask)
    outputs, _ = kernel(blank_padding(inputs, mask), state[None])
    return Unrolled(blank_padding(outputs, mask), last_step(outputs, mask, state))
