"""The unitary cell: a complex state with a norm-preserving transition."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.cells.cell import Cell, CellOutput
from saccade.zoo.fast.forms import is_fast
from saccade.zoo.fast.recurrence import scaled_modulus

# Added to the squared modulus, so that its root has a gradient at zero, as in the authors' code.
EPSILON = 1e-5
# Up to this many complex units one product with the full matrix is faster than two FFTs.
MATRIX_UP_TO = 512


class UnitaryCell(Cell[Tensor]):
    """``h_t = modrelu(W h_(t-1) + V x_t)`` with ``W = D3 R2 F^-1 D2 P R1 F D1``.

    Arjovsky, Shah and Bengio, 2016 (https://arxiv.org/abs/1511.06464), equations 6 and 8. D are
    rotations of each unit, R reflections, F the Fourier transform, P a fixed permutation: each is
    unitary, so W preserves norms, with 7 n parameters for n complex units and a cost of O(n log n).
    `modrelu` shortens or cuts a modulus and keeps the phase. The initial state is learned, as in
    the paper.

    ``d_hidden`` counts real numbers: the state, which is also the output, holds the real parts of
    n = d_hidden / 2 units and then the imaginary ones. A single step uses the transforms. A
    sequence computes the matrix W once and then takes one real product per step, which is faster
    for small states.
    """

    permutation: Tensor

    def __init__(self, d_input: int, d_hidden: int) -> None:
        super().__init__(d_input, d_hidden)
        if d_hidden % 2:
            raise UsageError(
                f"a unitary cell needs an even d_hidden, got {d_hidden}",
                hint=f"choose an even number, such as {d_hidden + 1}",
            )
        self.n = n = d_hidden // 2
        self.input_proj = nn.Linear(d_input, d_hidden, bias=False)
        nn.init.xavier_uniform_(self.input_proj.weight)
        self.angles = nn.Parameter(torch.empty(3, n).uniform_(-math.pi, math.pi))
        self.mirrors = nn.Parameter(torch.empty(2, n, 2).uniform_(-1, 1))
        self.bias = nn.Parameter(torch.zeros(n))
        # So that the initial state has norm one on average.
        reach = math.sqrt(3 / d_hidden)
        self.first = nn.Parameter(torch.empty(d_hidden).uniform_(-reach, reach))
        self.register_buffer("permutation", torch.randperm(n))

    def start(self, n: int) -> Float[Tensor, "batch d_hidden"]:
        """The learned initial state, the same for every row."""
        return self.first.expand(n, -1)

    def project(self, inputs: Float[Tensor, "*steps d_input"]) -> Float[Tensor, "*steps d_hidden"]:
        """``V x``."""
        return self.input_proj(inputs)

    def advance(
        self, projected: Float[Tensor, "batch d_hidden"], state: Float[Tensor, "batch d_hidden"]
    ) -> CellOutput:
        """One step by the Fourier transform."""
        turned = self.rotate(torch.complex(*state.chunk(2, dim=1)))
        total = projected + torch.cat([turned.real, turned.imag], dim=1)
        hidden = modrelu(total, self.bias)
        return CellOutput(hidden, hidden)

    def advancing(self) -> Callable[[Tensor, Any], CellOutput]:
        """The same with W as a matrix, unless it is large."""
        if self.n > MATRIX_UP_TO:
            return self.advance
        weight = self.matrix()

        def advance(projected: Tensor, state: Tensor) -> CellOutput:
            hidden = modrelu(torch.addmm(projected, state, weight), self.bias)
            return CellOutput(hidden, hidden)

        return advance

    def rotate(self, state: Complex[Tensor, "batch n"]) -> Complex[Tensor, "batch n"]:
        """``W h`` for each row h, factor by factor."""
        first, second, third = torch.polar(torch.ones_like(self.angles), self.angles)
        mirror, other = torch.view_as_complex(self.mirrors)
        state = _reflect(torch.fft.fft(first * state, norm="ortho"), mirror)
        state = torch.fft.ifft(second * state[:, self.permutation], norm="ortho")
        return third * _reflect(state, other)

    def matrix(self) -> Float[Tensor, "d_hidden d_hidden"]:
        """W as a real matrix that a row ``[real, imaginary]`` is multiplied with from the right."""
        identity = torch.eye(self.n, dtype=self.angles.dtype, device=self.angles.device)
        whole = self.rotate(torch.complex(identity, torch.zeros_like(identity)))
        real, imaginary = whole.real, whole.imag
        above = torch.cat([real, imaginary], dim=1)
        return torch.cat([above, torch.cat([-imaginary, real], dim=1)])


def modrelu(
    total: Float[Tensor, "batch d_hidden"], bias: Float[Tensor, " n"]
) -> Float[Tensor, "batch d_hidden"]:
    """``relu(modulus + bias)`` of each complex number, with its phase unchanged.

    Equation 8 of the paper, with the real parts in the first half of ``total``.

    >>> modrelu(torch.tensor([[3.0, 0.3, 4.0, 0.4]]), torch.tensor([-1.0, -1.0]))
    tensor([[2.4000, 0.0000, 3.2000, 0.0000]])
    """
    if is_fast():
        return scaled_modulus(total, bias, EPSILON)
    pairs = total.unflatten(1, (2, -1))  # [batch, 2, n]
    modulus = (pairs.square().sum(1, keepdim=True) + EPSILON).sqrt()
    return (pairs / modulus * (modulus + bias).relu()).flatten(1)


def _reflect(
    state: Complex[Tensor, "batch n"], mirror: Complex[Tensor, " n"]
) -> Complex[Tensor, "batch n"]:
    """``(I - 2 v v* / |v|^2) h``."""
    share = 2 / torch.view_as_real(mirror).square().sum()
    return state - torch.outer(state @ mirror.conj(), share * mirror)
