"""Look (nearly) at one place, drawn by chance in a way that a gradient can pass."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.attention.masks import masked_softmax
from saccade.attention.select import Select, Selected
from saccade.errors import UsageError


class GumbelSelect(Select):
    """Softmax of scores plus Gumbel noise, at a temperature; in evaluation the largest score alone.

    Jang et al., 2017 (https://arxiv.org/abs/1611.01144), equation 2, and Maddison et al., 2017
    (https://arxiv.org/abs/1611.00712). As the temperature falls to 0 the weights become one-hot
    samples of the softmax; ``temperature`` is a plain attribute, for training to lower.

    With ``straight_through`` the weights are one-hot already in training and the gradient is that
    of the soft ones (Jang et al., section 2.2): biased, but the rest of the model sees what it will
    see in evaluation.
    """

    def __init__(self, *, temperature: float = 1.0, straight_through: bool = False) -> None:
        super().__init__()
        if not temperature > 0:
            raise UsageError(
                f"a temperature must be above 0, got {temperature}",
                hint="0.1 is already close to one-hot; straight_through=True is one-hot",
            )
        self.temperature = temperature
        self.straight_through = straight_through

    def forward(
        self,
        scores: Float[Tensor, "batch query_pos key_pos"],
        mask: Bool[Tensor, "#batch #query_pos key_pos"],
    ) -> Selected:
        """Weights for every query."""
        if not self.training:
            return Selected(one_hot_of_largest(scores.detach(), mask))
        noisy = (scores + gumbel_noise(scores)) / self.temperature
        soft = masked_softmax(noisy, mask)
        if not self.straight_through:
            return Selected(soft)
        hard = one_hot_of_largest(noisy.detach(), mask)
        # In this order the forward value is hard to the last bit: x - x is exactly 0.
        return Selected(hard + (soft - soft.detach()))


def gumbel_noise(like: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Standard Gumbel noise: the negative logarithm of an exponential variable."""
    return -torch.empty_like(like).exponential_().log_()


def one_hot_of_largest(
    scores: Float[Tensor, "*shape key_pos"], mask: Bool[Tensor, "*#shape key_pos"]
) -> Float[Tensor, "*shape key_pos"]:
    """Weight 1 on the largest score that may be attended; all 0 where none may."""
    best = scores.masked_fill(~mask, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(scores).scatter_(-1, best, 1.0) * mask
