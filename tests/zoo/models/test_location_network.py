"""Where to look next: the equation, the edge that no mean crosses, and rounding."""

import torch
from torch.nn import functional

from saccade.zoo.models.ram import LocationNetwork

D_STATE, D_HIDDEN = 12, 7


def make(reach=0.8):
    torch.manual_seed(0)
    return LocationNetwork(D_STATE, d_hidden=D_HIDDEN, reach=reach)


def test_the_mean_is_that_of_the_equation():
    network, state = make(reach=0.6), 3 * torch.randn(2, 5, D_STATE)
    weight = dict(network.named_parameters())
    normal = functional.layer_norm(state, (D_STATE,))
    hidden = torch.relu(normal @ weight["1.weight"].T + weight["1.bias"])
    expected = 0.6 * torch.tanh(hidden @ weight["3.weight"].T + weight["3.bias"])
    torch.testing.assert_close(network(state), expected)


def test_no_mean_is_beyond_its_reach_however_large_the_state():
    network = make(reach=0.3)
    torch.nn.init.constant_(network[3].bias, 50.0)
    found = network(1e4 * torch.randn(50, D_STATE)).abs()
    assert found.max() <= 0.3 + 1e-6
    assert found.min() > 0.29


def test_the_mean_is_not_rounded_where_a_training_rounds():
    network, state = make(), torch.randn(4, D_STATE)
    exact = network(state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(network(state), exact)
        assert network(state.bfloat16()).dtype == torch.float32
