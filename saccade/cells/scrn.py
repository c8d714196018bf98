"""The structurally constrained recurrent network: fast units beside slow ones."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from saccade.cells.cell import Cell, CellOutput
from saccade.errors import UsageError


class ScrnCell(Cell[Tensor]):
    """Part of the state forgets at a fixed slow rate, the rest is a plain recurrent network.

    Mikolov et al., 2014 (https://arxiv.org/abs/1412.7753), section 3.2, equations 5 and 6::

        c_t = (1 - alpha) A x_t + alpha c_(t-1)
        s_t = sigmoid(P c_t + U x_t + W s_(t-1))
        y_t = h(V s_t + B c_t)

    The output is ``[s_t, c_t]``, so that one linear layer upon it is ``V s_t + B c_t``. As one
    network its recurrent matrix is ``[[W, P], [0, alpha I]]``; its lower half is not learned. We
    add a bias to ``s``, which the paper's inputs (one-hot words) had no need of.

    Args:
        n_slow: How many of the ``d_hidden`` units are slow; a quarter unless given (the paper has
            40 beside 100 and 10 beside 40).
        alpha: What a slow unit keeps in a step; 0.95 throughout the paper.
    """

    def __init__(
        self, d_input: int, d_hidden: int, *, n_slow: int | None = None, alpha: float = 0.95
    ) -> None:
        super().__init__(d_input, d_hidden)
        self.n_slow = max(1, d_hidden // 4) if n_slow is None else n_slow
        self.n_fast = d_hidden - self.n_slow
        if self.n_fast < 1 or self.n_slow < 1:
            raise UsageError(
                f"an SCRN needs fast and slow units, got {self.n_slow} slow of {d_hidden}",
                hint="choose n_slow between 1 and d_hidden - 1",
            )
        self.alpha = alpha
        self.fast_input = nn.Linear(d_input, self.n_fast)
        self.slow_input = nn.Linear(d_input, self.n_slow, bias=False)
        self.state_proj = nn.Linear(d_hidden, self.n_fast, bias=False)

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """Zeros."""
        return self.zeros(n, self.d_hidden)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``[U x + b, (1 - alpha) A x]``, one product."""
        slow = (1 - self.alpha) * self.slow_input.weight
        bias = torch.cat([self.fast_input.bias, slow.new_zeros(self.n_slow)])
        return functional.linear(inputs, torch.cat([self.fast_input.weight, slow]), bias)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """The slow units first: the fast ones read their new values."""
        from_input, added = projected.split([self.n_fast, self.n_slow], dim=1)
        fast, slow = state.split([self.n_fast, self.n_slow], dim=1)
        slow = torch.add(added, slow, alpha=self.alpha)
        read = torch.cat([fast, slow], dim=1)
        fast = torch.addmm(from_input, read, self.state_proj.weight.T).sigmoid()
        hidden = torch.cat([fast, slow], dim=1)
        return CellOutput(hidden, hidden)
