"""Show and Tell, a captioner without attention: the image is the LSTM's first input.

Vinyals, Toshev, Bengio and Erhan, 2015, Show and Tell (https://arxiv.org/abs/1411.4555).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.digit_captions import Sentences
from saccade.zoo.tasks.vocabulary import UNK


class ShowAndTell(nn.Module):
    """``x_(-1) = W CNN(image)``, ``x_t = E y_t``, ``p_(t+1) = softmax(W_o LSTM(x_t))``.

    Section 3.1, equations 10 to 12. "The image is only input once": the paper found that showing it
    at every step overfits.

    Where we differ: CNN(image) is the mean over the encoder's maps, which is what the last pooling
    of the paper's net does, so that it shares encoders with `ShowAttendTell`.

    Args:
        encoder: Returns feature maps ``[batch, d_annotation, row, column]``.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        d_annotation: int,
        n_words: int,
        d_embed: int = 64,
        d_hidden: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.image_proj = nn.Linear(d_annotation, d_embed)
        self.embed = nn.Embedding(n_words, d_embed)
        self.cell = LstmCell(d_embed, d_hidden)
        self.output = nn.Linear(d_hidden, n_words)
        self.dropout = Dropout(dropout)

    def see(
        self, images: Float[Tensor, "image channel height width"]
    ) -> Float[Tensor, "image d_annotation"]:
        """The image as one vector."""
        return self.encoder(images).mean((2, 3))

    def words_after(
        self, seen: Float[Tensor, "image d_annotation"], sentences: Sentences
    ) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real positions, given the image, with teacher forcing.

        Args:
            sentences: One or the same number about each image, grouped by image.
        """
        seen = seen.repeat_interleave(len(sentences.target_in) // len(seen), dim=0)
        first = self.dropout(self.image_proj(seen))[:, None]  # [batch, 1, d_embed]
        words = self.dropout(self.embed(sentences.target_in))
        states = self.cell.unroll(torch.cat([first, words], dim=1)).outputs[:, 1:]
        return self.output(self.dropout(states[sentences.target_mask]))

    def forward(
        self, images: Float[Tensor, "image channel height width"], sentences: Sentences
    ) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real positions, with teacher forcing."""
        return self.words_after(self.see(images), sentences)

    def start(self, source: Float[Tensor, "image channel height width"]) -> Started:
        """Read the image."""
        first = self.image_proj(self.see(source))
        return Started(None, self.cell.step(first, self.cell.start(len(first))).state)

    def step(self, tokens: Int[Tensor, " row"], memory: None, state: LstmState) -> Stepped:
        """Read a word, predict the next; never <unk>."""
        del memory
        hidden, state = self.cell.step(self.embed(tokens), state)
        log_probs = self.output(hidden).log_softmax(-1)
        return Stepped(log_probs.index_fill(1, tokens.new_tensor(UNK), -torch.inf), state)
