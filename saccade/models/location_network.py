"""Where a model that draws its glimpses means to look next."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from saccade.sensors.coordinates import unrounded


class LocationNetwork(nn.Sequential):
    """``reach * tanh(B relu(A norm(state)))``: the mean of the places that may be drawn.

    The papers have one map of the state. Here the state is normalised first, since it grows from
    glimpse to glimpse, and the gaze would drift outwards with it; there is a hidden layer; and a
    tanh, because a policy that runs out of the image early does not come back.

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
        """The mean for each state, exact even where a training rounds."""
        with unrounded(input):
            return self.reach * super().forward(input.to(next(self.parameters()).dtype))
