"""Show, Attend and Tell: a captioner with soft or hard attention over image regions.

Xu, Ba, Kiros, Cho, Courville, Salakhutdinov, Zemel and Bengio, 2015, Show, Attend and Tell
(https://arxiv.org/abs/1502.03044).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.zoo.attention.attend import Attended, Memory, read
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import HardSelect, SoftSelect
from saccade.zoo.cells.cell import map_tensors, select_rows
from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.fast.forms import upcast
from saccade.zoo.objectives.reinforce import LearnedBaseline
from saccade.zoo.objectives.variational import sampled_bound
from saccade.zoo.tasks.digit_captions import Sentences
from saccade.zoo.tasks.vocabulary import UNK

Looking = Literal["soft", "hard"]
SHARE_SOFT = 0.5  # share of images with soft attention while hard attention is trained; section 4.1


class TeacherForced(NamedTuple):
    """Sentences with teacher forcing: attention and features at each word."""

    features: Float[Tensor, "token d_embed"]
    """Features for the next word, at the real positions."""
    hidden: Float[Tensor, "batch pos d_hidden"]
    """The state before each word, which selects the location."""
    weights: Float[Tensor, "batch pos cell"]
    log_prob: Float[Tensor, "batch pos"] | None
    """Log-probability of the sampled cells; None for soft attention."""
    entropy: Float[Tensor, "batch pos"] | None


class CaptionLoss(NamedTuple):
    """Loss of a captioner, a mean over sentences."""

    loss: Float[Tensor, ""]
    nats: Float[Tensor, ""]
    """Negative log-likelihood of a word, without gradient."""
    uneven: Float[Tensor, ""]
    """Deviation of each cell's total weight from one: the doubly stochastic term."""


class ShowAttendTell(nn.Module):
    """``a = encoder(image)``, then for each word: attend to a, step an LSTM, predict.

    Section 3.1 of the paper, with the L annotation vectors a_i as the cells of a grid:

    - *Start.* ``h_0`` and ``c_0`` are tanh layers of the mean of all a_i.
    - *Attend.* ``e_ti = f(a_i, h_(t-1))``, ``alpha_t = softmax(e_t)``. **Soft** (section 4.2) reads
      the mean ``z_t = sum_i alpha_ti a_i``; **hard** (4.1) reads one a_i, sampled from alpha.
    - *Gate.* ``z_t`` is scaled by ``beta_t = sigmoid(f_beta(h_(t-1)))``: the weight of the image
      for this word (4.2.1).
    - *Update.* An LSTM from h_(t-1), the previous word and z_t (equations 1 to 3).
    - *Predict.* ``softmax(L_o(E y_(t-1) + L_h h_t + L_z z_t))`` (equation 7).

    Soft attention is trained by the likelihood, with ``lambda sum_i (1 - sum_t alpha_ti)^2`` so
    that every cell is attended over a sentence (equation 14). Hard attention is trained by the
    variational bound, whose gradient is sampled (equations 10 to 12), with a baseline and the
    entropy of the choice; a random half of the images has soft attention, as if the expected cell
    had been sampled.

    Where we differ: the baseline is learnt from the state and not a moving average, because the
    return differs from word to word; the encoder may be trained with the task, and then encodes
    locations, too (`ConvolutionalEncoder`); f is one hidden layer of additive attention.

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
        looking: Looking = "soft",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.looking = looking
        self.embed = nn.Embedding(n_words, d_embed)
        self.first_hidden = nn.Linear(d_annotation, d_hidden)
        self.first_cell = nn.Linear(d_annotation, d_hidden)
        self.score = AdditiveScore(d_query=d_hidden, d_key=d_annotation, d_hidden=d_embed)
        self.soft, self.hard = SoftSelect(), HardSelect()
        self.gate = nn.Linear(d_hidden, 1)
        self.cell = LstmCell(d_embed, d_hidden)
        self.context_gates = nn.Linear(d_annotation, 4 * d_hidden, bias=False)
        self.hidden_proj = nn.Linear(d_hidden, d_embed)
        self.context_proj = nn.Linear(d_annotation, d_embed, bias=False)
        self.output = nn.Linear(d_embed, n_words)
        self.dropout = Dropout(dropout)
        # Without it a soft captioner would have weights that nothing trains.
        self.baseline = LearnedBaseline(d_hidden) if looking == "hard" else None

    def read(self, maps: Float[Tensor, "image d_annotation row column"]) -> Started:
        """The memory from the encoder's maps, and the LSTM's initial state."""
        annotations = self.dropout(maps.flatten(2).mT)  # [image, cell, d_annotation]
        mask = annotations.new_ones(annotations.shape[:2], dtype=torch.bool)
        mean = annotations.mean(1)
        state = LstmState(self.first_hidden(mean).tanh(), self.first_cell(mean).tanh())
        return Started(Memory(self.score.project(annotations), annotations, mask), state)

    def attend(
        self,
        query: Float[Tensor, "image query_pos d_hidden"],
        memory: Memory,
        *,
        is_soft: Bool[Tensor, "image query_pos"] | None = None,
    ) -> Attended:
        """Attend, and scale the context by the gate.

        Args:
            is_soft: True for images with soft attention although attention is hard.
        """
        scores = self.score(query, memory.keys)  # [image, query_pos, cell]
        mask = memory.mask[:, None]
        select = self.soft if self.looking == "soft" else self.hard
        weights, log_prob, entropy = select(scores, mask)
        if is_soft is not None:
            weights = torch.where(is_soft[:, :, None], self.soft(scores, mask).weights, weights)
        context = self.gate(query).sigmoid() * read(weights, memory.values)
        return Attended(context, weights, log_prob, entropy)

    def features(
        self,
        word: Float[Tensor, "token d_embed"],
        hidden: Float[Tensor, "token d_hidden"],
        context: Float[Tensor, "token d_annotation"],
    ) -> Float[Tensor, "token d_embed"]:
        """The features for the next word."""
        return self.dropout(word + self.hidden_proj(hidden) + self.context_proj(context))

    def tell(
        self,
        maps: Float[Tensor, "image d_annotation row column"],
        sentences: Sentences,
        *,
        is_soft: Bool[Tensor, " batch"] | None = None,
    ) -> TeacherForced:
        """Attend and decode with teacher forcing.

        Args:
            maps: The encoder's.
            sentences: One or the same number about each image, grouped by image.
        """
        (memory, state), n_images = self.read(maps), len(maps)
        rows = torch.arange(n_images, device=maps.device)
        state = select_rows(state, rows.repeat_interleave(len(sentences.target_in) // n_images))
        if is_soft is not None:
            is_soft = is_soft.unflatten(0, (n_images, -1))
        words = self.dropout(self.embed(sentences.target_in))  # [batch, pos, d_embed]
        looks, before, after = [], [], []
        for gates in self.cell.project(words).unbind(1):
            # The sentences about an image are queries to one memory.
            query = state.hidden.unflatten(0, (n_images, -1))
            look = map_tensors(_by_sentence, self.attend(query, memory, is_soft=is_soft))
            before.append(state.hidden)
            step = self.cell.advance(gates + self.context_gates(look.context), state)
            state = step.state
            looks.append(look)
            after.append(step.output)
        context, weights, log_prob, entropy = (
            None if parts[0] is None else torch.stack(parts, dim=1)
            for parts in zip(*looks, strict=True)
        )
        assert context is not None and weights is not None
        real = sentences.target_mask
        features = self.features(words[real], torch.stack(after, 1)[real], context[real])
        return TeacherForced(features, torch.stack(before, 1), weights, log_prob, entropy)

    def forward(
        self, images: Float[Tensor, "image channel height width"], sentences: Sentences
    ) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real positions, with teacher forcing."""
        return self.output(self.tell(self.encoder(images), sentences).features)

    def loss(
        self,
        maps: Float[Tensor, "image d_annotation row column"],
        sentences: Sentences,
        *,
        cover_weight: float = 0.0,
        entropy_weight: float = 0.0,
        reward_weight: float = 1.0,
    ) -> CaptionLoss:
        """Negative log-likelihood of the sentences, or its bound, plus the doubly stochastic term.

        Args:
            maps: The encoder's.
            cover_weight: lambda of equation 14.
            entropy_weight: For hard attention: weight of the entropy bonus.
            reward_weight: For hard attention: weight of the policy gradient.
        """
        mask, n = sentences.target_mask, len(sentences.target_mask)
        is_soft = None
        if self.looking == "hard":
            is_soft = torch.rand(n, device=maps.device) < SHARE_SOFT
        forced = self.tell(maps, sentences, is_soft=is_soft)
        right = sentences.target_out[mask][:, None]
        found = upcast(self.output(forced.features)).log_softmax(-1).gather(1, right)[:, 0]
        log_likelihood = torch.zeros(mask.shape, device=found.device).masked_scatter(mask, found)
        loss = -found.sum() / n
        if self.baseline is not None:
            assert (
                forced.log_prob is not None and forced.entropy is not None and is_soft is not None
            )
            loss = sampled_bound(
                forced.log_prob[None],
                log_likelihood[None],
                baseline=self.baseline(forced.hidden)[None],
                entropy=forced.entropy[None],
                entropy_weight=entropy_weight,
                reward_weight=reward_weight,
                mask=(mask & ~is_soft[:, None])[None],
            ).loss
        # A sampled cell has no gradient: the term trains only soft weights.
        seen = (forced.weights * mask[:, :, None]).sum(1)  # [batch, cell]
        uneven = (1 - seen).square().sum(1).mean()
        loss = loss + cover_weight * uneven if cover_weight else loss
        return CaptionLoss(loss, -found.detach().mean(), uneven.detach())

    def start(self, source: Float[Tensor, "image channel height width"]) -> Started:
        """Encode the image."""
        return self.read(self.encoder(source))

    def step(self, tokens: Int[Tensor, " row"], memory: Memory, state: LstmState) -> Stepped:
        """Attend, update, predict what follows ``tokens``; never <unk>."""
        word = self.embed(tokens)
        query = state.hidden.unflatten(0, (len(memory.keys), -1))  # [image, beam, d_hidden]
        look = self.attend(query, memory)
        context = look.context.flatten(0, 1)  # [row, d_annotation]
        hidden, state = self.cell.advance(
            self.cell.project(word) + self.context_gates(context), state
        )
        logits = self.output(self.features(word, hidden, context))
        log_probs = logits.log_softmax(-1).index_fill(1, tokens.new_tensor(UNK), -torch.inf)
        return Stepped(log_probs, state, look.weights.flatten(0, 1))


def _by_sentence(of_image: Float[Tensor, "image query_pos ..."]) -> Float[Tensor, "batch ..."]:
    return of_image.flatten(0, 1)
