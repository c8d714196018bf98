"""Gates that begin open for as long as the task may ask."""

import torch
from jaxtyping import Float
from torch import Tensor


def keeping_bias(
    d_hidden: int, longest: int, generator: torch.Generator | None = None
) -> Float[Tensor, " d_hidden"]:
    """Biases with which a sigmoid gate keeps a value for 1 to ``longest`` steps, unit by unit.

    Tallec and Ollivier, 2018 (https://arxiv.org/abs/1804.11188), "chrono" initialisation:
    ``log(U(1, longest - 1))``. A gate with bias b keeps ``sigmoid(b) = 1 - 1 / (1 + e^b)`` a step,
    and so about ``1 + e^b`` steps in all.
    """
    steps = torch.empty(d_hidden).uniform_(1, max(longest - 1, 1), generator=generator)
    return steps.log()
