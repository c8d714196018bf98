"""Random numbers that depend on a seed and a step only."""

import torch

# torch's generator on the CPU takes the lower 32 bits of a seed and drops the others, so both must
# fit into them. Multiples of 2^32 over the golden ratio lie far apart, which keeps the steps of one
# seed clear of those of another.
_SPREAD = 2_654_435_769


def generator_of(seed: int, step: int) -> torch.Generator:
    """The source of randomness of one step of one seed.

    Whatever was drawn before does not matter, so a training that is taken up again, or split among
    processes, sees the same data.

    >>> draws = [torch.rand((), generator=generator_of(3, 5)).item() for _ in range(2)]
    >>> draws[0] == draws[1]
    True
    """
    return torch.Generator().manual_seed((seed * _SPREAD + step) % 2**32)
