"""RAM: a recurrent network that takes a few glimpses of an image and then classifies it."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn, relu

from saccade.zoo.fast.forms import is_fast, without_autocast
from saccade.zoo.fast.glimpse_path import GlimpseLayers, PatchAt, Path, glimpse_path
from saccade.zoo.objectives.reinforce import LabelledBaseline
from saccade.zoo.sensors.retina import Retina, check_images, sum_images

# The mean of the next glimpse's location.


class LocationNetwork(nn.Sequential):
    """``reach * tanh(B relu(A norm(state)))``: the mean of sampled locations.

    The papers have one linear map of the state. Here the state is normalised first, since it grows
    from glimpse to glimpse, and locations would drift outwards with it; there is a hidden layer;
    and a tanh, because a policy that leaves the image early in training does not return.

    Args:
        reach: No mean is farther from the centre than this; 1 is the edge of the image.
    """

    def __init__(self, d_state: int, *, d_hidden: int, reach: float) -> None:
        super().__init__(
            nn.LayerNorm(d_state),
            nn.Linear(d_state, d_hidden),
            nn.ReLU(),
            nn.Linear(d_hidden, 2),
            nn.Tanh(),
        )
        self.reach = reach

    def forward(
        self,
        input: Float[Tensor, "*any d_state"],  # noqa: A002  as nn.Sequential calls it
    ) -> Float[Tensor, "*any 2"]:
        """The mean for each state, in full precision even under autocast."""
        with without_autocast(input):
            return self.reach * super().forward(input.to(next(self.parameters()).dtype))


Policy = Literal["learnt", "random", "central"]


class Glimpses(NamedTuple):
    """Result of a pass over a batch of images; the first axis has M samples of each image."""

    logits: Float[Tensor, "sample batch glimpse d_class"]
    """The answer after each glimpse; the last one counts."""
    centres: Float[Tensor, "sample batch glimpse 2"]
    """Locations; the first is fixed, the others were chosen (or all are random)."""
    log_prob: Float[Tensor, "sample batch chosen"]
    """Log-density of each chosen location. Meaningless for the random policy."""
    expected: Float[Tensor, "sample batch chosen d_class"]
    """The baseline: the expected reward before a location was sampled, for each possible class."""
    states: Float[Tensor, "sample batch glimpse d_hidden"]
    """The state of the core after each glimpse, without gradient."""


class Ram(nn.Module):
    """Recurrent Attention Model.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), sections 3 and 4, with its symbols::

        g_t = relu(what relu(of_patch x_t) + where relu(of_place l_(t-1)))      glimpse network
        h_t = relu(keep h_(t-1) + read g_t)                                     core
        l_t ~ N(mean(h_t), std)                                                 location network
        answer = softmax(answer h_T)                                            action network

    A sampled location is a constant for the gradient: the likelihood of the answer trains all but
    the location network, which is trained by reward
    (`saccade.zoo.objectives.reinforce.hybrid_loss`). The gradient of the policy continues into the
    core, which can so learn what to store for choosing locations; that of the baseline does not.

    Where we differ: the first glimpse is at the centre instead of a random location, so that a
    trained model is deterministic. The location network stays inside the image (`LocationNetwork`).
    And there is an answer after each glimpse, which may be trained and rewarded
    (`saccade.zoo.objectives.reinforce.stepwise_loss`); only the last one is the model's.

    Args:
        size: Height and width of the images in pixels.
        policy: ``random`` and ``central`` are controls: every glimpse anywhere in the image, or one
        glimpse at the centre regardless of ``n_glimpses``.
        std: Standard deviation of sampled locations; it may be changed during training (`set_std`).
        reach: No mean is farther from the centre than this; 1 is the edge of the image.

    >>> model = Ram(size=(28, 28), n_classes=10, retina=Retina(size=8), n_glimpses=3)
    >>> model(torch.zeros(2, 28, 28)).shape
    torch.Size([2, 10])
    """

    std: Tensor

    def __init__(  # noqa: PLR0913
        self,
        *,
        size: tuple[int, int],
        n_classes: int,
        retina: Retina,
        n_glimpses: int,
        d_glimpse: int = 128,
        d_hidden: int = 256,
        policy: Policy = "learnt",
        std: float = 0.1,
        reach: float = 0.8,
    ) -> None:
        super().__init__()
        retina.check(*size)
        self.size, self.retina, self.policy = size, retina, policy
        self.n_glimpses = 1 if policy == "central" else n_glimpses
        self.register_buffer("std", torch.tensor(std))
        self.of_patch = nn.Linear(retina.d_patch, d_glimpse)
        self.of_place = nn.Linear(2, d_glimpse)
        self.what = nn.Linear(d_glimpse, d_hidden)
        self.where = nn.Linear(d_glimpse, d_hidden, bias=False)
        self.read = nn.Linear(d_hidden, d_hidden)
        self.keep = nn.Linear(d_hidden, d_hidden, bias=False)
        self.mean = LocationNetwork(d_hidden, d_hidden=d_glimpse, reach=reach)
        self.answer = nn.Linear(d_hidden, n_classes)
        self.baseline = LabelledBaseline(d_hidden, n_classes)

    def forward(
        self, images: Float[Tensor, "batch height width"]
    ) -> Float[Tensor, "batch d_class"]:
        """The answer, with glimpses at the policy's means."""
        return self.look(images, is_drawn=False).logits[0, :, -1]

    def look(
        self, images: Float[Tensor, "batch height width"], *, n_samples: int = 1, is_drawn: bool
    ) -> Glimpses:
        """Take ``n_glimpses`` glimpses of each image, and answer.

        Args:
            n_samples: Number of independent passes over each image.
            is_drawn: Sample locations around the mean; otherwise use the mean. Those of the random
                policy are always sampled.
        """
        check_images(images, size=self.size)
        sums, shape = sum_images(images), (len(images), n_samples)

        def patch_at(places: Float[Tensor, "rows 2"]) -> Float[Tensor, "rows d_patch"]:
            patches = self.retina.look_again(sums, places.unflatten(0, shape))
            return patches.flatten(2).flatten(0, 1)

        # A row is a sample of an image, image by image.
        places, states = self.path(patch_at, self._noise(math.prod(shape), is_drawn=is_drawn))
        before = states[:-1]
        return Glimpses(
            logits=self.answer(states).unflatten(1, shape).permute(2, 1, 0, 3),
            centres=places.unflatten(1, shape).permute(2, 1, 0, 3),
            log_prob=self._log_prob(places[1:], before).unflatten(1, shape).permute(2, 1, 0),
            expected=self.baseline(before).unflatten(1, shape).permute(2, 1, 0, 3),
            states=states.detach().unflatten(1, shape).permute(2, 1, 0, 3),
        )

    def path(self, patch_at: PatchAt, noise: Float[Tensor, "glimpse rows 2"]) -> Path:
        """The paper's equations, glimpse by glimpse.

        Args:
            patch_at: The retina's output at given locations.
            noise: As `place` takes it.
        """
        if is_fast():
            return glimpse_path(self._layers(), noise, patch_at=patch_at, place_at=self.place)
        h = noise.new_zeros(noise.shape[1], self.keep.in_features)
        places, states = [], []
        for step in range(self.n_glimpses):
            place = self.place(noise, step, h).detach()  # a constant for the gradient
            x = patch_at(place)
            g = relu(self.what(relu(self.of_patch(x))) + self.where(relu(self.of_place(place))))
            h = relu(self.keep(h) + self.read(g))
            places.append(place)
            states.append(h)
        return Path(torch.stack(places), torch.stack(states))

    def place(
        self,
        noise: Float[Tensor, "glimpse rows 2"],
        step: int,
        before: Float[Tensor, "rows d_hidden"],
    ) -> Float[Tensor, "rows 2"]:
        """The location of glimpse ``step``, after a state.

        Args:
            noise: Offset of each location from its mean; for the random policy the location itself.
        """
        if self.policy == "random":
            return noise[step]
        return self.mean(before) + noise[step - 1] if step else torch.zeros_like(noise[0])

    def _layers(self) -> GlimpseLayers:
        return GlimpseLayers(
            self.of_patch, self.of_place, self.what, self.where, self.read, self.keep
        )

    def _noise(self, rows: int, *, is_drawn: bool) -> Float[Tensor, "glimpse rows 2"]:
        """As `place` takes it."""
        noise = self.keep.weight.new_empty(self.n_glimpses, rows, 2)
        if self.policy == "random":
            return 2 * torch.rand_like(noise) - 1
        return self.std * torch.randn_like(noise) if is_drawn else torch.zeros_like(noise)

    def _log_prob(
        self, places: Float[Tensor, "chosen rows 2"], before: Float[Tensor, "chosen rows d_hidden"]
    ) -> Float[Tensor, "chosen rows"]:
        off = (places - self.mean(before)) / self.std
        return -0.5 * off.square().sum(-1) - 2 * self.std.log() - math.log(2 * math.pi)

    def set_std(self, std: float) -> None:
        """Set the standard deviation of sampled locations."""
        self.std.fill_(std)
