"""Video description: attention over frames, convolutions over space and time, or both.

Yao, Torabi, Cho, Ballas, Pal, Larochelle and Courville, 2015, Describing Videos by Exploiting
Temporal Structure (https://arxiv.org/abs/1502.08029).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.zoo.attention.attend import Attention, Memory
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import make_select
from saccade.zoo.cells.cell import select_rows
from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.models.image_encoders import ConvolutionalEncoder
from saccade.zoo.sensors.retina import pixel_centres
from saccade.zoo.tasks.digit_captions import Sentences


class Described(NamedTuple):
    """Logits, and the weights of the frames."""

    logits: Float[Tensor, "token d_vocab"]
    """At the real positions."""
    weights: Float[Tensor, "batch pos frame"]


class FrameEncoder(nn.Module):
    """Each frame separately: convolutions, then a linear layer.

    Takes the role of the paper's GoogLeNet trained on ImageNet.
    """

    def __init__(self, *, size: int, d_frame: int, channels: Sequence[int] = (16, 32, 64)) -> None:
        super().__init__()
        strides = (2,) * len(channels)
        self.maps = ConvolutionalEncoder(n_colours=1, channels=channels, strides=strides)
        with torch.no_grad():
            n = self.maps.eval()(torch.zeros(1, 1, size, size)).numel()
        self.maps.train()
        self.layer = nn.Linear(n, d_frame)

    def forward(
        self, frames: Float[Tensor, "batch frame 1 height width"]
    ) -> Float[Tensor, "batch frame d_frame"]:
        """One vector per frame."""
        maps = self.maps(frames.flatten(0, 1))
        return self.layer(maps.flatten(1)).relu().unflatten(0, frames.shape[:2])


class MotionEncoder(nn.Module):
    """Motion features: convolutions over space and time.

    Section 3.1 of the paper, local temporal structure: a 3-D convolutional network whose last maps
    are max-pooled to one vector per frame. Where we differ: it sees the frames themselves and is
    trained with the task; the paper's sees histograms of gradients and of optical flow, and is
    pretrained on action recognition.
    """

    def __init__(self, *, channels: Sequence[int] = (12, 24, 48)) -> None:
        super().__init__()
        self.d_motion = channels[-1]
        self.layers = nn.Sequential()
        for number, (d_in, d_out) in enumerate(pairwise((1, *channels))):
            side = 3 if number else 5
            kernel, padding = (3, side, side), (1, side // 2, side // 2)
            self.layers.append(
                nn.Conv3d(d_in, d_out, kernel, stride=(1, 2, 2), padding=padding, bias=False)
            )
            self.layers.append(nn.BatchNorm3d(d_out))
            self.layers.append(nn.ReLU(inplace=True))

    def forward(
        self, frames: Float[Tensor, "batch frame 1 height width"]
    ) -> Float[Tensor, "batch frame d_motion"]:
        """One vector per frame, from that frame and its neighbours."""
        maps = self.layers(frames.transpose(1, 2))  # [batch, d_motion, frame, row, column]
        return maps.amax((3, 4)).mT


class VideoDescriber(nn.Module):
    """For each word: attend to the frames, step an LSTM, predict.

    Section 3.2, global temporal structure: ``e_ti = w . tanh(W h_(t-1) + U v_i)``, ``alpha_t =
    softmax(e_t)``, ``phi_t = sum_i alpha_ti v_i``; an LSTM from h_(t-1), the previous word and
    phi_t (section 2.3); and ``softmax(U tanh(W [h_t, phi_t, E y_(t-1)]))``.

    The four systems of the paper's table 1: with ``looking="mean"`` all frames have the same weight
    (the plain encoder-decoder), with ``"soft"`` there is attention; v_i has features of the frame
    alone, or of frame and motion.

    Where we differ: v_i has one more number, the time of frame i, because the digits of our videos
    do not show their order; and the LSTM's initial state is a layer of the frames' mean.

    Args:
        size: Side of a frame in pixels; None for precomputed features, `d_frame` per frame.
        has_motion: Use a `MotionEncoder`.
    """

    def __init__(
        self,
        *,
        n_words: int,
        size: int | None,
        d_frame: int = 128,
        d_embed: int = 64,
        d_hidden: int = 128,
        looking: Literal["soft", "mean"] = "soft",
        has_motion: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.frame = None if size is None else FrameEncoder(size=size, d_frame=d_frame)
        self.motion = MotionEncoder() if has_motion and size is not None else None
        d_value = d_frame + 1 + (self.motion.d_motion if self.motion else 0)
        self.first_hidden = nn.Linear(d_value, d_hidden)
        self.first_cell = nn.Linear(d_value, d_hidden)
        score = AdditiveScore(d_query=d_hidden, d_key=d_value, d_hidden=d_embed)
        self.attention = Attention(score, make_select(looking))
        self.embed = nn.Embedding(n_words, d_embed)
        self.cell = LstmCell(d_embed, d_hidden)
        self.context_gates = nn.Linear(d_value, 4 * d_hidden, bias=False)
        self.before_output = nn.Linear(d_hidden + d_value + d_embed, d_embed)
        self.output = nn.Linear(d_embed, n_words)
        self.dropout = Dropout(dropout)
        if looking == "mean":  # no scores, so it would not be trained
            score.requires_grad_(False)

    def watch(
        self, frames: Float[Tensor, "batch frame ..."]
    ) -> Float[Tensor, "batch frame d_value"]:
        """The vectors v_i: frame features, motion features, and time."""
        parts = [frames if self.frame is None else self.frame(frames)]
        if self.motion is not None:
            parts.append(self.motion(frames))
        n, n_frames = frames.shape[:2]
        parts.append(pixel_centres(n_frames).to(parts[0])[None, :, None].expand(n, -1, -1))
        return self.dropout(torch.cat(parts, dim=2))

    def start(self, source: Float[Tensor, "batch frame ..."]) -> Started:
        """Encode the video."""
        values = self.watch(source)
        mean = values.mean(1)
        state = LstmState(self.first_hidden(mean).tanh(), self.first_cell(mean).tanh())
        return Started(self.attention.remember(values), state)

    def predict(
        self,
        hidden: Float[Tensor, "token d_hidden"],
        context: Float[Tensor, "token d_value"],
        word: Float[Tensor, "token d_embed"],
    ) -> Float[Tensor, "token d_vocab"]:
        """Logits of the next word."""
        together = self.before_output(torch.cat([hidden, context, word], dim=1)).tanh()
        return self.output(self.dropout(together))

    def forward(self, frames: Float[Tensor, "film frame ..."], sentences: Sentences) -> Described:
        """Logits at the real positions, with teacher forcing.

        Args:
            sentences: One or the same number about each video, grouped by video.
        """
        (memory, state), n_films = self.start(frames), len(frames)
        rows = torch.arange(n_films, device=frames.device)
        state = select_rows(state, rows.repeat_interleave(len(sentences.target_in) // n_films))
        words = self.dropout(self.embed(sentences.target_in))  # [batch, pos, d_embed]
        states, contexts, weights = [], [], []
        for gates in self.cell.project(words).unbind(1):
            look = self.attention(state.hidden.unflatten(0, (n_films, -1)), memory)
            context = look.context.flatten(0, 1)  # [batch, d_value]
            step = self.cell.advance(gates + self.context_gates(context), state)
            state = step.state
            states.append(step.output)
            contexts.append(context)
            weights.append(look.weights.flatten(0, 1))
        real = sentences.target_mask
        hidden, context = torch.stack(states, 1)[real], torch.stack(contexts, 1)[real]
        return Described(self.predict(hidden, context, words[real]), torch.stack(weights, 1))

    def step(self, tokens: Int[Tensor, " row"], memory: Memory, state: LstmState) -> Stepped:
        """Attend, update, predict what follows ``tokens``."""
        word = self.embed(tokens)
        query = state.hidden.unflatten(0, (len(memory.keys), -1))  # [film, beam, d_hidden]
        look = self.attention(query, memory)
        context = look.context.flatten(0, 1)  # [row, d_value]
        gates = self.cell.project(word) + self.context_gates(context)
        hidden, state = self.cell.advance(gates, state)
        logits = self.predict(hidden, context, word)
        return Stepped(logits.log_softmax(-1), state, look.weights.flatten(0, 1))
