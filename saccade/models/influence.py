"""Where a model without attention looks: how much each input counts for each prediction."""

import torch
from jaxtyping import Float
from torch import Tensor


def influence(
    outputs: Float[Tensor, " step"], inputs: Float[Tensor, "batch pos d"]
) -> Float[Tensor, "step batch pos"]:
    """The share of each input in the slope of each output: weights that sum to one.

    Simonyan et al., 2014 (https://arxiv.org/abs/1312.6034), in the form of Denil et al., 2014
    (https://arxiv.org/abs/1412.6815): the slope along the input itself, ``|x . dy / dx|``,
    which is what leaving out the input would change, to first order. A row of zeros stays zeros: a
    prediction that no input has a part in.

    Args:
        outputs: Log-probabilities, for instance. Made from ``inputs``, which must require a
            gradient.

    >>> x = torch.tensor([[[1.0], [2.0]]], requires_grad=True)
    >>> influence((x[0, :, 0] * torch.tensor([3.0, 0.5])).sum()[None], x)
    tensor([[[0.7500, 0.2500]]])
    """
    rows = []
    for each in outputs:
        (slope,) = torch.autograd.grad(each, inputs, retain_graph=True)
        rows.append((slope * inputs.detach()).sum(-1).abs())
    weights = torch.stack(rows)  # [step, batch, pos]
    total = weights.sum((1, 2), keepdim=True)
    return torch.where(total > 0, weights / total, 0.0)
