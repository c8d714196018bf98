"""Padded sequences for kernels that know nothing of masks."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def is_right_padded(mask: Bool[Tensor, "batch pos"]) -> bool:
    """Whether padding stands at the end of each row only.

    >>> is_right_padded(torch.tensor([[True, True, False], [True, True, True]]))
    True
    >>> is_right_padded(torch.tensor([[False, True, True]]))
    False
    """
    return bool((mask[:, :-1] | ~mask[:, 1:]).all())


def blank_padding(
    steps: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos d"]:
    """Zeros at padded steps, whatever stood there (an infinity too), and no gradient to them."""
    return steps.masked_fill(~mask[:, :, None], 0.0)


def last_step(
    steps: Float[Tensor, "batch pos d"],
    mask: Bool[Tensor, "batch pos"],
    start: Float[Tensor, "batch d"],
) -> Float[Tensor, "batch d"]:
    """Each row's last real step; ``start`` for a row that has none."""
    place = (mask.sum(1) - 1).clamp_min(0)  # right-padded: the number of real steps says where
    rows = torch.arange(len(steps), device=steps.device)
    return torch.where(mask[:, :1], steps[rows, place], start)


def reverse(
    steps: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"] | None
) -> Float[Tensor, "batch pos d"]:
    """The real steps of each row in reverse order, padding left where it is: its own inverse.

    Any mask will do: the first real step changes places with the last, and so on.
    """
    if mask is None:
        return steps.flip(1)
    batch, n = mask.shape
    pos = torch.arange(n, device=mask.device).expand(batch, n)
    # Sorting by this puts a row's real steps first, in order; counted from behind it pairs them.
    order = torch.where(mask, pos, pos + n).argsort(1)
    length = mask.sum(1, keepdim=True)
    partner = order.gather(1, torch.where(pos < length, length - 1 - pos, pos))
    index = torch.empty_like(order).scatter_(1, order, partner)
    return steps.gather(1, index[:, :, None].expand_as(steps))
