"""MNIST in ink or no ink: each pixel is drawn with its grey value as probability.

Salakhutdinov and Murray, 2008 (https://doi.org/10.1145/1390156.1390266): generative models are
compared by the likelihood of such digits. Their fixed drawing is a file of its own that is not part
of MNIST. Here the digits to learn from are drawn anew every time, and those to be judged by once,
from a fixed seed: the same distribution, so the figures can be compared, but not the same pixels.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from saccade.tasks.images import as_images
from saccade.tasks.mnist import Digits
from saccade.tasks.step_seed import generator_of


def binarise(
    images: UInt8[Tensor, "batch height width"], generator: torch.Generator
) -> Float[Tensor, "batch height width"]:
    """Each pixel 1 with its grey value as probability, else 0.

    >>> half = torch.full((1, 100, 100), 128, dtype=torch.uint8)
    >>> drawn = binarise(half, torch.Generator().manual_seed(0))
    >>> sorted(set(drawn.flatten().tolist())), round(drawn.mean().item(), 1)
    ([0.0, 1.0], 0.5)
    """
    return torch.bernoulli(as_images(images), generator=generator)


class BinarisedDigits(Sequence[Tensor]):
    """The batches of one epoch: all digits once, drawn anew.

    A batch depends on seed, epoch and its number alone, and is made when it is asked for.
    """

    def __init__(self, digits: Digits, *, batch: int, seed: int, epoch: int) -> None:
        self.digits, self.seed = digits, seed
        order = torch.randperm(len(digits.labels), generator=generator_of(seed, epoch))
        self.parts = order.split(batch)
        # After all epochs: numbers from 2^20 on are those of batches.
        self.first = 2**20 + epoch * len(self.parts)

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.parts)

    def __getitem__(self, number: int) -> Float[Tensor, "batch height width"]:  # pyright: ignore[reportIncompatibleMethodOverride] # no slices
        """The batch of this number."""
        images = self.digits.images[self.parts[number]]
        return binarise(images, generator_of(self.seed, self.first + number))
