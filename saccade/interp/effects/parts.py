"""The parts of a block that can be replaced: heads, and what it adds besides its attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeAlias

from jaxtyping import Float
from torch import Tensor

from saccade.interp.heads.capture import Readable, keep_in, on_input, on_output
from saccade.interp.heads.taps import HeadLayer


class HeadsValue(NamedTuple):
    """Heads of one layer, and what replaces their activations at one position."""

    layer: int
    heads: tuple[int, ...]
    value: Float[Tensor, "*batch head d_head"]
    """The same for each prompt of a batch, or one for each."""


class FeedForwardValue(NamedTuple):
    """What replaces all that a block adds to the residual stream besides its attention."""

    layer: int
    value: Float[Tensor, "*batch d_model"]


Change: TypeAlias = HeadsValue | FeedForwardValue


def besides_attention(
    at: HeadLayer,
    entered: Float[Tensor, "*batch d_model"],
    wrote: Float[Tensor, "*batch d_model"],
    left: Float[Tensor, "*batch d_model"],
) -> Float[Tensor, "*batch d_model"]:
    """What a block adds to the residual stream besides its attention: its feed-forward part.

    The stream after the block minus the stream before it minus what the attention adds, so that
    nothing has to be known about the block; it holds for parallel and for sequential blocks, and
    for mixtures of experts. Only for layers whose attention reaches the stream.

    Args:
        entered: the stream before the block.
        wrote: the output of the attention's projection.
        left: the stream after the block.
    """
    added = wrote if at.post_norm is None else at.post_norm.normed(wrote)
    return left - entered - added.to(left) * at.multiplier


class Streams(NamedTuple):
    """What the blocks of a run read and wrote, by layer."""

    entered: dict[int, Tensor]
    wrote: dict[int, Tensor]
    left: dict[int, Tensor]

    def feed_forward(self, at: HeadLayer) -> Float[Tensor, "batch pos d_model"]:
        """What the block of a layer adds besides its attention."""
        left = self.left[at.index]
        wrote = self.wrote[at.index].reshape(left.shape)  # some models flatten batch and position
        return besides_attention(at, self.entered[at.index], wrote, left)


@contextmanager
def recorded_streams(model: Readable) -> Iterator[Streams]:
    """Record the streams of the run inside the block."""
    streams = Streams({}, {}, {})
    with ExitStack() as stack:
        for at in model.layers:
            stack.enter_context(on_input(at.block, keep_in(streams.entered, at.index)))
            stack.enter_context(on_output(at.projection, keep_in(streams.wrote, at.index)))
            stack.enter_context(on_output(at.block, keep_in(streams.left, at.index)))
        yield streams
