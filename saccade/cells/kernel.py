"""The weights inside torch's own recurrent kernels."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn


class KernelWeights(NamedTuple):
    """One layer's, in the order in which torch's kernels take them."""

    of_input: Float[Tensor, "d_gates d_input"]
    of_state: Float[Tensor, "d_gates d_hidden"]
    input_bias: Float[Tensor, " d_gates"]
    state_bias: Float[Tensor, " d_gates"]


def weights_of(kernel: nn.RNNBase) -> KernelWeights:
    """The weights of a kernel's only layer."""
    return KernelWeights(*kernel.all_weights[0])
