"""Whether attention lies where it should, when it is known where that is.

The idea is the pointing game of Zhang et al., 2016 (https://arxiv.org/abs/1608.00507, section 4.2):
a hit is a map whose maximum lies on the thing that was named. Where we differ: we ask for more than
half of the weight, since a maximum alone may have a hundredth of it.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

HALF = 0.5
"""More weight than this on the right place is a hit."""


def weight_in_windows(
    weights: Float[Tensor, "look row column"], windows: Float[Tensor, "look 4"]
) -> Float[Tensor, " look"]:
    """How much of each map's weight lies in its window: on cells whose centre is inside.

    Args:
        windows: ``x, y, half_width, half_height`` between the image's edges -1 and 1.

    >>> corner = torch.tensor([[-0.5, -0.5, 0.5, 0.5]])
    >>> weight_in_windows(torch.tensor([[[0.25, 0.75], [0.0, 0.0]]]), corner)
    tensor([0.2500])
    """
    _, rows, columns = weights.shape
    is_inside = _between(rows, windows[:, 1], windows[:, 3])[:, :, None]
    is_inside = is_inside & _between(columns, windows[:, 0], windows[:, 2])[:, None]
    return (weights * is_inside).sum((1, 2))


def weight_in_spans(
    weights: Float[Tensor, "look place"], spans: Int[Tensor, "look 2"]
) -> Float[Tensor, " look"]:
    """How much of each row's weight lies in its span, from its first place to before its end.

    >>> weight_in_spans(torch.tensor([[0.25, 0.5, 0.25]]), torch.tensor([[1, 3]]))
    tensor([0.7500])
    """
    place = torch.arange(weights.shape[1], device=weights.device)
    is_inside = (place >= spans[:, :1]) & (place < spans[:, 1:])
    return (weights * is_inside).sum(1)


def _between(
    n: int, centre: Float[Tensor, " look"], half: Float[Tensor, " look"]
) -> Bool[Tensor, "look n"]:
    """Which of n cells in a row have their centre in a window."""
    at = (2 * torch.arange(n, device=centre.device) + 1) / n - 1
    return (at - centre[:, None]).abs() <= half[:, None]
