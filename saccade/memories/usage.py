"""Which slots are in use, and which are free to be written: the DNC's dynamic allocation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# The least usage. Slots that are exactly free would all be alike, and the product of usages would
# send no gradient; the value of DeepMind's own code.
LEAST = 1e-6


def next_usage(
    usage: Float[Tensor, "batch slot"],
    *,
    write_weights: Float[Tensor, "batch slot"],
    read_weights: Float[Tensor, "batch head slot"],
    free: Float[Tensor, "batch head"],
) -> Float[Tensor, "batch slot"]:
    """``u <- (u + w - u w) prod_h (1 - f_h r_h)``: written slots are used, freed ones no longer.

    Graves et al., 2016 (https://doi.org/10.1038/nature20101), Methods, "dynamic memory allocation".
    ``w`` and ``r`` are the weights of the step before.

    Args:
        free: How far each read head lets go of what it has just read.
    """
    # The paper's own code sends no gradient through what was written: usage is for bookkeeping.
    written = write_weights.detach()
    kept = (1 - free[:, :, None] * read_weights).prod(1)  # [batch, slot]
    return (usage + written - usage * written) * kept


def allocation_weights(usage: Float[Tensor, "batch slot"]) -> Float[Tensor, "batch slot"]:
    """Weights that fall on the least used slot, and on the next as far as that one is in use.

    The same place, equation 1: with ``p`` the slots from the least used on,
    ``a[p_j] = (1 - u[p_j]) prod_(i<j) u[p_i]``. They sum to at most 1: less where all is in use.

    >>> allocation_weights(torch.tensor([[1.0, 0.5, 0.0]]))
    tensor([[0.0000e+00, 5.0000e-07, 1.0000e+00]])
    """
    usage = LEAST + (1 - LEAST) * usage
    ascending = usage.sort(dim=-1, stable=True)
    before = ascending.values.cumprod(-1).roll(1, dims=-1)  # the product of all that are less used
    first = torch.arange(usage.shape[1], device=usage.device) == 0
    in_order = (1 - ascending.values) * before.masked_fill(first, 1.0)
    return torch.zeros_like(usage).scatter(1, ascending.indices, in_order)
