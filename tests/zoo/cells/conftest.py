"""What several tests of cells need."""

import pytest
import torch

# Sizes are distinct primes, so a swapped axis cannot pass by luck; the unitary cell and the heads
# want an even number, so d_hidden is twice a prime.
BATCH, STEPS, D_INPUT, D_HIDDEN = 3, 7, 5, 22
LENGTHS = (7, 4, 2)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """These sizes are too small to share the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def inputs():
    return torch.randn(BATCH, STEPS, D_INPUT)


@pytest.fixture
def right_padded():
    """True = a real step; rows of different lengths, padding behind them."""
    return torch.arange(STEPS) < torch.tensor(LENGTHS)[:, None]


@pytest.fixture
def holes():
    """A mask with padding anywhere."""
    mask = torch.ones(BATCH, STEPS, dtype=torch.bool)
    mask[0, 2] = mask[1, 0] = mask[1, 6] = mask[2, 3] = mask[2, 4] = False
    return mask
