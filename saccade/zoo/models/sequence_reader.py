"""A recurrent cell with a linear output, and the influence of inputs on predictions."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.zoo.cells.stacks import make_cell

# In place of attention: the influence of each input on each prediction.


def influence(
    outputs: Float[Tensor, " step"], inputs: Float[Tensor, "batch pos d"]
) -> Float[Tensor, "step batch pos"]:
    """Gradient times input of each output, normalised to weights that sum to one.

    Simonyan et al., 2014 (https://arxiv.org/abs/1312.6034), in the form of Denil et al., 2014
    (https://arxiv.org/abs/1412.6815): the gradient along the input itself, ``|x . dy / dx|``, which
    is the first-order effect of removing the input. A row of zeros stays zeros: no input has an
    effect.

    Args:
        outputs: Log-probabilities, for instance. Computed from ``inputs``, which must require a
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


class SequenceReader(nn.Module):
    """``y_t = W s_t + b``: any cell of `saccade.zoo.cells` with a linear output.

    The simplest model to compare cells, as in Le et al., 2015 (https://arxiv.org/abs/1504.00941)
    and Arjovsky et al., 2016 (https://arxiv.org/abs/1511.06464): the output at step t depends only
    on the state.

    Args:
        longest: Longest time dependency in steps; see `LstmCell` and `GruCell`.

    >>> reader = SequenceReader(d_input=2, d_hidden=5, d_output=1)
    >>> reader(torch.zeros(3, 7, 2)).shape
    torch.Size([3, 7, 1])
    """

    def __init__(
        self,
        *,
        d_input: int,
        d_hidden: int,
        d_output: int,
        cell: str = "lstm",
        longest: int | None = None,
    ) -> None:
        super().__init__()
        self.cell = make_cell(cell, d_input, d_hidden, longest=longest)
        self.output = nn.Linear(d_hidden, d_output)

    def forward(
        self, inputs: Float[Tensor, "batch pos d_input"]
    ) -> Float[Tensor, "batch pos d_output"]:
        """The outputs of every step."""
        return self.output(self.cell.unroll(inputs).outputs)

    def at_end(self, inputs: Float[Tensor, "batch pos d_input"]) -> Float[Tensor, "batch d_output"]:
        """The output after the last step."""
        return self.output(self.cell.unroll(inputs).outputs[:, -1])

    def influence_on_end(self, inputs: Float[Tensor, "pos d_input"]) -> Float[Tensor, "1 pos"]:
        """The influence of each step on the largest output after the last one."""
        with torch.enable_grad():
            given = inputs[None].detach().requires_grad_()
            return influence(self.at_end(given).amax(-1), given)[:, 0]
