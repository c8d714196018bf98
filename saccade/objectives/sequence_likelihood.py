"""The likelihood of whole sequences, from logits that were asked for at real positions only."""

from jaxtyping import Bool, Float, Int
from torch import Tensor


def sequence_log_probs(
    logits: Float[Tensor, "token d_vocab"],
    targets: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
) -> Float[Tensor, " batch"]:
    """``log p(y) = sum_t log p(y_t | y_<t)`` of each row.

    Args:
        logits: Of the positions where the mask is True, row after row, as a translator gives them.

    >>> import torch
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> sequence_log_probs(torch.zeros(3, 5), torch.zeros(2, 2, dtype=torch.long), mask)
    tensor([-3.2189, -1.6094])
    """
    right = targets[mask][:, None]
    of_token = logits.log_softmax(-1).gather(1, right)[:, 0]
    row = mask.nonzero()[:, 0]
    return of_token.new_zeros(len(mask)).index_add(0, row, of_token)
