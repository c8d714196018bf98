"""Products by oneDNN are the products that torch computes."""

import torch

from saccade.interp.heads.onednn import product


def test_a_product_is_a_product():
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=generator) for s in ((2, 3, 7), (5, 7), (5,)))
    with torch.no_grad():
        expected = (x.double() @ weight.double().T + bias.double()).float()
        assert torch.allclose(product(x, weight, bias), expected, atol=1e-5)
        halves = product(x.bfloat16(), weight.bfloat16())
        assert halves.dtype == torch.bfloat16
    weight.requires_grad_()
    product(x, weight).sum().backward()
    assert weight.grad is not None  # with a gradient, torch's usual product
