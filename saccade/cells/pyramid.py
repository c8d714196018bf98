"""The pyramid: each layer reads two steps of the one below as one, and has half as many."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.attention.dropout import Dropout
from saccade.cells.bidirectional import Bidirectional
from saccade.cells.lstm import LstmCell


class Climbed(NamedTuple):
    """What the top of a pyramid put out."""

    outputs: Float[Tensor, "batch step d_hidden"]
    mask: Bool[Tensor, "batch step"]
    """True = made of at least one real step."""


class Pyramid(nn.Module):
    """Bidirectional LSTMs upon each other, each over pairs of steps: ``h_i = f([g_2i, g_2i+1])``.

    Chan et al., 2016 (https://arxiv.org/abs/1508.01211), section 3.1, equation 5. With three layers
    what is attended is 8 times shorter than what was heard: attention finds its place sooner, and
    the LSTMs have fewer steps.

    Where we differ: the paper has one more LSTM below, over single frames; here the lowest layer
    reads pairs, too.

    >>> import torch
    >>> Pyramid(3, 5, n_layers=2)(torch.zeros(2, 7, 3), torch.ones(2, 7).bool()).outputs.shape
    torch.Size([2, 2, 10])
    """

    def __init__(self, d_input: int, d_hidden: int, *, n_layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [2 * d_input, *[4 * d_hidden] * (n_layers - 1)]
        self.layers = nn.ModuleList(
            Bidirectional(LstmCell(width, d_hidden), LstmCell(width, d_hidden)) for width in widths
        )
        self.d_hidden = 2 * d_hidden
        self.dropout = Dropout(dropout)

    def forward(
        self, steps: Float[Tensor, "batch pos d_input"], mask: Bool[Tensor, "batch pos"]
    ) -> Climbed:
        """Read whole sequences; padding is at the end."""
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, Bidirectional)
            steps, mask = pair_steps(self.dropout(steps) if number else steps, mask)
            steps = layer.unroll(steps, mask=mask).outputs
        return Climbed(steps, mask)


def pair_steps(
    steps: Float[Tensor, "batch pos d"], mask: Bool[Tensor, "batch pos"]
) -> tuple[Float[Tensor, "batch pair d2"], Bool[Tensor, "batch pair"]]:
    """Every two steps side by side; a last one that is alone stands beside zeros.

    >>> import torch
    >>> pair_steps(torch.arange(3.0).view(1, 3, 1), torch.ones(1, 3).bool())[0]
    tensor([[[0., 1.],
             [2., 0.]]])
    """
    blank = steps.masked_fill(~mask[:, :, None], 0.0)
    if steps.shape[1] % 2:
        blank = functional.pad(blank, (0, 0, 0, 1))
    return blank.unflatten(1, (-1, 2)).flatten(2), mask[:, ::2]
