"""The weighted read against the plain product."""

import pytest
import torch

from saccade.zoo.attention.attend import read


@pytest.mark.parametrize("n_queries", [1, 3])
def test_reading_is_the_matrix_product_with_its_gradients(n_queries):
    torch.manual_seed(0)
    weights = torch.rand(2, n_queries, 5, requires_grad=True)
    values = torch.randn(2, 5, 7, requires_grad=True)
    wanted = torch.randn(2, n_queries, 7)
    torch.testing.assert_close(read(weights, values), weights @ values)
    found = torch.autograd.grad((read(weights, values) * wanted).sum(), (weights, values))
    expected = torch.autograd.grad(((weights @ values) * wanted).sum(), (weights, values))
    torch.testing.assert_close(found, expected)


def test_gradients_of_gradients_are_right_too():
    weights = torch.rand(2, 1, 3, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(read, (weights, values))


def test_a_side_without_gradient_gets_none():
    weights = torch.rand(2, 1, 3)
    values = torch.randn(2, 3, 5, requires_grad=True)
    read(weights, values).sum().backward()
    assert weights.grad is None
    torch.testing.assert_close(values.grad, weights.mT.expand(2, 3, 5))
