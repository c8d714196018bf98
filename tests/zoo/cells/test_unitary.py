"""The unitary cell turns its state and never stretches it."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.cells import unitary as module
from saccade.zoo.cells.unitary import UnitaryCell, modrelu

BATCH, STEPS, D_INPUT, N = 3, 7, 5, 11


@pytest.fixture
def cell():
    return UnitaryCell(D_INPUT, 2 * N).double()


def factors(cell):
    """The seven matrices of the paper's product, each written out."""
    n = cell.n
    rotations = [torch.diag(torch.exp(1j * angle)) for angle in cell.angles]
    mirrors = []
    for pair in cell.mirrors:
        v = torch.complex(pair[:, 0], pair[:, 1])
        mirrors.append(torch.eye(n) - 2 * torch.outer(v, v.conj()) / (v.abs() ** 2).sum())
    place = torch.arange(n, dtype=torch.float64)
    fourier = torch.exp(-2j * torch.pi * place[:, None] * place / n) / n**0.5
    permutation = torch.eye(n, dtype=torch.complex128)[cell.permutation]
    d1, d2, d3 = rotations
    r1, r2 = mirrors
    return [d3, r2, fourier.conj().T, d2, permutation, r1, fourier, d1]


def test_turning_is_the_papers_product_of_matrices(cell):
    state = torch.randn(BATCH, N, dtype=torch.complex128)
    expected = state.T
    for factor in reversed(factors(cell)):
        expected = factor @ expected
    torch.testing.assert_close(cell.rotate(state), expected.T, atol=1e-6, rtol=1e-6)


def test_turning_keeps_every_length_and_every_angle(cell):
    weight = cell.matrix()
    torch.testing.assert_close(weight @ weight.T, torch.eye(2 * N, dtype=torch.float64))


def test_the_matrix_and_the_transforms_are_the_same_step(cell, monkeypatch):
    inputs = torch.randn(BATCH, STEPS, D_INPUT, dtype=torch.float64)
    results = []
    for largest in (module.MATRIX_UP_TO, 0):
        monkeypatch.setattr(module, "MATRIX_UP_TO", largest)
        cell.zero_grad()
        outputs = cell.unroll(inputs).outputs
        outputs.square().sum().backward()
        results.append([outputs, *(p.grad for p in cell.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_a_gradient_through_a_thousand_steps_keeps_its_length(cell):
    state = torch.randn(BATCH, 2 * N, dtype=torch.float64, requires_grad=True)
    silence = torch.zeros(BATCH, 1000, D_INPUT, dtype=torch.float64)
    last = cell.unroll(silence, state).state
    torch.testing.assert_close(last.norm(dim=1), state.norm(dim=1), atol=1e-2, rtol=1e-2)
    signal = torch.randn_like(last)
    (grad,) = torch.autograd.grad((last * signal).sum(), state)
    torch.testing.assert_close(grad.norm(dim=1), signal.norm(dim=1), atol=1e-2, rtol=1e-2)


def test_it_learns_a_number_of_weights_that_grows_with_n_and_not_with_its_square():
    sizes = {n: sum(p.numel() for p in UnitaryCell(D_INPUT, 2 * n).parameters()) for n in (11, 22)}
    assert sizes[22] == 2 * sizes[11]


def test_modrelu_shortens_a_modulus_and_keeps_its_phase():
    z, bias = torch.randn(BATCH, 2 * N, dtype=torch.float64), torch.randn(N, dtype=torch.float64)
    before = torch.complex(z[:, :N], z[:, N:])
    after = modrelu(z, bias)
    after = torch.complex(after[:, :N], after[:, N:])
    lives = before.abs() + bias > 1e-3
    torch.testing.assert_close(after.abs(), (before.abs() + bias).relu(), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(after[lives].angle(), before[lives].angle())


def test_the_derivatives_of_modrelu_first_and_second_are_right():
    z = torch.randn(BATCH, 2 * N, dtype=torch.float64, requires_grad=True)
    bias = torch.full((N,), -0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(modrelu, (z, bias))
    assert torch.autograd.gradgradcheck(modrelu, (z, bias))


def test_at_zero_its_gradient_is_a_number():
    z = torch.zeros(BATCH, 2 * N, requires_grad=True)
    bias = torch.zeros(N, requires_grad=True)
    modrelu(z, bias).sum().backward()
    assert torch.isfinite(z.grad).all() and torch.isfinite(bias.grad).all()


def test_units_come_in_pairs():
    with pytest.raises(UsageError, match="needs an even d_hidden, got 7") as caught:
        UnitaryCell(D_INPUT, 7)
    assert "such as 8" in caught.value.hint
