"""Frames of sound or of ink, and the text in them: what every recogniser is trained on."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.tasks.symbols import BOS, EOS, PAD


class Frames(NamedTuple):
    """Rows of frames; the mask is True where a real one stands, which is at the beginning."""

    values: Float[Tensor, "batch frame d_frame"]
    mask: Bool[Tensor, "batch frame"]


class Spelling(NamedTuple):
    """A text as a decoder takes it: it reads ``target_in`` and is to say ``target_out``."""

    target_in: Int[Tensor, "batch pos"]
    """Begins with BOS."""
    target_out: Int[Tensor, "batch pos"]
    """Ends in EOS."""
    mask: Bool[Tensor, "batch pos"]


class FrameBatch(NamedTuple):
    """Recordings side by side, and what was said or written in each."""

    frames: Float[Tensor, "batch frame d_frame"]
    frame_mask: Bool[Tensor, "batch frame"]
    text: Int[Tensor, "batch pos"]
    """Ids of a coder, without BOS and EOS, filled up with PAD."""
    text_mask: Bool[Tensor, "batch pos"]

    @property
    def source(self) -> Frames:
        """What a recogniser is given."""
        return Frames(self.frames, self.frame_mask)

    @property
    def spelling(self) -> Spelling:
        """The text with its beginning and its end."""
        mask = functional.pad(self.text_mask, (1, 0), value=True)
        ends = self.text_mask.sum(1, keepdim=True)
        target_in = functional.pad(self.text, (1, 0), value=BOS).where(mask, PAD)
        target_out = functional.pad(self.text, (0, 1), value=PAD).scatter(1, ends, EOS)
        return Spelling(target_in, target_out, mask)
