"""What a reward is compared with, so that the gradient of REINFORCE is less noisy.

A baseline must not depend on the action it judges; then it changes the noise of the gradient and
not its mean.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class MovingAverage(nn.Module):
    """The mean of the returns so far, of which each new batch makes up a tenth.

    Xu et al., 2015 (https://arxiv.org/abs/1502.03044), section 4.1: ``b = 0.9 b + 0.1 return``.
    Theirs starts from zero and takes some batches to arrive; we divide by the weight of what has
    been seen, as Adam does. It is a buffer, so a resumed run goes on with it.
    """

    average: Tensor
    seen: Tensor

    def __init__(self, *, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self) -> Float[Tensor, ""]:
        """The average of what was seen; zero before anything was."""
        return self.average / self.seen.clamp_min(self.rate)

    @torch.no_grad()
    def update(self, returns: Float[Tensor, "*any"]) -> None:
        """Take in the returns of a batch, after they were judged."""
        self.average.lerp_(returns.mean(), self.rate)
        self.seen.lerp_(torch.ones_like(self.seen), self.rate)


class LearnedBaseline(nn.Module):
    """Predict the return from the state of the network at each step.

    Mnih et al., 2014 (https://arxiv.org/abs/1406.6247), section 3: trained by the squared error
    that `reinforce_loss` adds. It reads the state without sending a gradient back, because the
    network should serve the task and not its own critic.
    """

    def __init__(self, d_hidden: int) -> None:
        super().__init__()
        self.predict = nn.Linear(d_hidden, 1)

    def forward(self, hidden: Float[Tensor, "*at d_hidden"]) -> Float[Tensor, "*at"]:
        """The return to be expected."""
        return self.predict(hidden.detach())[..., 0]


class LabelledBaseline(nn.Module):
    """Predict the return at each step for each answer that might be the right one.

    Which answer is right is known while a system learns, and tells more of the return than the
    state alone: how likely the right one is already. It does not depend on the action, so the mean
    of the gradient stays what it is. Like `LearnedBaseline` it sends no gradient back.
    """

    def __init__(self, d_hidden: int, n_classes: int) -> None:
        super().__init__()
        self.predict = nn.Linear(d_hidden, n_classes)

    def forward(self, hidden: Float[Tensor, "*at d_hidden"]) -> Float[Tensor, "*at d_class"]:
        """The return to be expected if each class is the right one."""
        return self.predict(hidden.detach())


def of_right_answer(
    expected: Float[Tensor, "sample batch step d_class"], right: Int[Tensor, "batch step"]
) -> Float[Tensor, "sample batch step"]:
    """What a `LabelledBaseline` expects at each step, knowing which answer is the right one."""
    return expected.gather(3, right[None, :, :, None].expand(*expected.shape[:3], 1))[..., 0]
