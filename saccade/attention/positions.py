"""Where a token stands, as a vector to add to it: attention alone does not see any order."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import UsageError

# The longest wavelength is 2 pi times this: Vaswani et al., section 3.5.
LONGEST = 10000.0


def sinusoidal_positions(
    n: int, d_model: int, *, device: torch.device | None = None
) -> Float[Tensor, "pos d_model"]:
    """Sines and cosines of the position, at wavelengths in geometric progression.

    Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762), section 3.5:
    ``sin(pos / 10000^(2i/d))`` in column 2i, the cosine in column 2i + 1.

    >>> sinusoidal_positions(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    even = torch.arange(0, d_model, 2, device=device)
    rate = torch.exp(even * (-math.log(LONGEST) / d_model))
    angle = torch.arange(n, device=device)[:, None] * rate  # [pos, d_model / 2]
    # An odd d_model leaves the last cosine out.
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d_model]


class LearnedPositions(nn.Module):
    """A learnt vector for each position.

    Gehring et al., 2017 (https://arxiv.org/abs/1705.03122), section 3.1; Vaswani et al. found them
    as good as the sinusoidal ones (table 3, row E), but they end at ``max_length``.
    """

    def __init__(self, *, max_length: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.weight, std=0.02)  # as in GPT-2 and BERT, small beside a token's own

    def forward(self, n: int, *, start: int = 0) -> Float[Tensor, "pos d_model"]:
        """The vectors of positions ``start`` to ``start + n``."""
        max_length = len(self.weight)
        if start + n > max_length:
            raise UsageError(
                f"positions are learnt up to {max_length}, asked for {start + n}",
                hint="shorten the text, or train with a larger max_length",
            )
        return self.weight[start : start + n]
