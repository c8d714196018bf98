"""Online hard attention: at each input, emit the next symbol or wait.

Luo, Chiu, Jaitly and Sutskever, 2016, Learning Online Alignments with Continuous Rewards Policy
Gradient (https://arxiv.org/abs/1608.01281). The source is read once, from left to right, and the
target is emitted while it is read, without waiting for its end.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.cells.gru import GruCell
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.fast.forms import upcast
from saccade.zoo.objectives.reinforce import LearnedBaseline
from saccade.zoo.objectives.variational import SampledBound, sampled_bound
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.vocabulary import EOS, Padded

# Initial log-odds of emitting: about one input in four. At even odds everything would be emitted
# before half of the source is read.
FIRST_ODDS = -1.0


class OnlineAlignment(NamedTuple):
    """One pass over a batch of sources."""

    hidden: Float[Tensor, "batch source_pos d_hidden"]
    is_emitted: Bool[Tensor, "batch source_pos"]
    """A symbol was emitted at this input: as many per row as its target has."""
    odds: Float[Tensor, "batch source_pos"]
    """Log-odds of emitting."""
    is_free: Bool[Tensor, "batch source_pos"]
    """The decision was free: symbols were left, and there was time to wait."""


class OnlineMemory(NamedTuple):
    """A source, ready to be read input by input."""

    inputs: Float[Tensor, "sentence source_pos d_gates"]
    n_inputs: Int[Tensor, " sentence"]


class OnlineState(NamedTuple):
    """State of a hypothesis and its position in the source."""

    hidden: Float[Tensor, "row d_hidden"]
    position: Int[Tensor, " row"]
    """Index of the next input."""


class OnlineTranslator(nn.Module):
    """``h_i = GRU(x_i, y_last, b_(i-1))``, then a decision, ``b_i ~ Bernoulli(sigmoid(w . h_i))``.

    Where b_i is 1 the next symbol is emitted, ``softmax(W h_i)``, and the reward is the
    log-probability of the correct one. The symbols are trained by likelihood, the decisions by the
    policy gradient of future rewards, with a learnt baseline and an entropy bonus: "critical" in
    the paper, and so here.

    Where we differ: one GRU where the paper has LSTMs of two and three layers; and emission is
    forced once there are only as many inputs left as symbols, so that every target is complete. The
    reward then includes the log-probability of emitting, too: passes are sampled from another
    distribution than the model's, and this is its term in the bound. Without it the model may wait
    until emission is forced. A target must not be longer than its source, both with their end
    symbols.
    """

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        d_embed: int = 64,
        d_hidden: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.source_embed = nn.Embedding(n_source, d_embed)
        self.target_embed = nn.Embedding(n_target, d_embed)
        self.cell = GruCell(d_embed, d_hidden)
        self.word_proj = nn.Linear(d_embed, 3 * d_hidden, bias=False)
        self.said_proj = nn.Linear(1, 3 * d_hidden, bias=False)
        self.coin = nn.Linear(d_hidden, 1)
        nn.init.constant_(self.coin.bias, FIRST_ODDS)
        self.output = nn.Linear(d_hidden, n_target)
        self.baseline = LearnedBaseline(d_hidden)
        self.dropout = Dropout(dropout)

    def listen(
        self,
        x: Float[Tensor, "batch d_gates"],
        word: Float[Tensor, "batch d_gates"],
        was_said: Bool[Tensor, " batch"],
        hidden: Float[Tensor, "batch d_hidden"],
    ) -> Float[Tensor, "batch d_hidden"]:
        """The state after one more input, given the last symbol and whether it was just emitted."""
        decision = was_said[:, None] * self.said_proj.weight[:, 0]
        return self.cell.advance(x + word + decision, hidden).output

    def align(self, batch: PairBatch) -> OnlineAlignment:
        """Read every source with teacher forcing; decisions are sampled in training only."""
        n_inputs, n_symbols = batch.source_mask.sum(1), batch.target_mask.sum(1)
        _refuse_longer_targets(n_inputs, n_symbols)
        inputs = self.cell.project(self.dropout(self.source_embed(batch.source)))
        words = self.word_proj(self.target_embed.weight)  # [d_vocab, d_gates]
        rows = torch.arange(len(batch.source), device=batch.source.device)
        hidden = self.cell.start(len(rows))
        n_said = torch.zeros_like(n_symbols)
        was_said = torch.zeros_like(n_symbols, dtype=torch.bool)
        toss = torch.rand(inputs.shape[:2], device=inputs.device)
        states, odds, said, free = [], [], [], []
        for i, x in enumerate(inputs.unbind(1)):
            last = batch.target_in[rows, n_said.clamp_max(batch.target_in.shape[1] - 1)]
            hidden = self.listen(x, words[last], was_said, hidden)
            log_odds = upcast(self.coin(hidden)[:, 0])
            due, left = n_symbols - n_said, n_inputs - i
            speaks = toss[:, i] < log_odds.sigmoid() if self.training else log_odds > 0
            was_said = (due > 0) & (speaks | (due >= left))
            n_said = n_said + was_said
            for kept, each in zip(
                (states, odds, said, free),
                (hidden, log_odds, was_said, (due > 0) & (due < left)),
                strict=True,
            ):
                kept.append(each)
        return OnlineAlignment(*(torch.stack(each, 1) for each in (states, said, odds, free)))

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits of every target symbol, at the input where it was emitted."""
        aligned = self.align(batch)
        return self.output(self.dropout(aligned.hidden[aligned.is_emitted]))

    def loss(
        self, batch: PairBatch, *, n_samples: int, entropy_weight: float, reward_weight: float = 1.0
    ) -> SampledBound:
        """The variational bound of the targets' likelihood, from several passes each."""
        many = PairBatch(*(each.repeat(n_samples, *[1] * (each.dim() - 1)) for each in batch))
        aligned = self.align(many)
        logits = self.output(self.dropout(aligned.hidden[aligned.is_emitted]))
        right = many.target_out[many.target_mask]  # in the order of emission
        rewards = torch.zeros_like(aligned.odds).masked_scatter(
            aligned.is_emitted, -functional.cross_entropy(logits, right, reduction="none")
        )
        speaking = functional.logsigmoid(aligned.odds)
        # Where emission was forced, its log-probability is part of the likelihood.
        rewards = rewards + torch.where(aligned.is_emitted & ~aligned.is_free, speaking, 0.0)
        log_prob = torch.where(aligned.is_emitted, speaking, functional.logsigmoid(-aligned.odds))
        entropy = functional.softplus(aligned.odds) - aligned.odds * aligned.odds.sigmoid()
        by_sample = (n_samples, len(batch.source))
        return sampled_bound(
            torch.where(aligned.is_free, log_prob, 0.0).unflatten(0, by_sample),
            rewards.unflatten(0, by_sample),
            baseline=self.baseline(aligned.hidden).unflatten(0, by_sample),
            entropy=torch.where(aligned.is_free, entropy, 0.0).unflatten(0, by_sample),
            entropy_weight=entropy_weight,
            reward_weight=reward_weight,
        )

    def start(self, source: Padded) -> Started:
        """Start before the first input."""
        inputs = self.cell.project(self.source_embed(source.ids))
        n_inputs = source.mask.sum(1)
        state = OnlineState(self.cell.start(len(inputs)), torch.zeros_like(n_inputs))
        return Started(OnlineMemory(inputs, n_inputs), state)

    def step(
        self, tokens: Int[Tensor, " row"], memory: OnlineMemory, state: OnlineState
    ) -> Stepped:
        """Read until the model decides to emit or the source ends; then predict.

        A hypothesis at the end of its source can only end.
        """
        n_beams = len(tokens) // len(memory.inputs)
        sentence = torch.arange(len(memory.inputs), device=tokens.device).repeat_interleave(n_beams)
        end = memory.n_inputs[sentence]  # [row]
        word = self.word_proj(self.target_embed(tokens))
        hidden, position = state
        was_said = position > 0
        is_listening = is_open = position < end
        while is_listening.any():
            x = memory.inputs[sentence, position.clamp_max(memory.inputs.shape[1] - 1)]
            new = self.listen(x, word, was_said & is_listening, hidden)
            hidden = torch.where(is_listening[:, None], new, hidden)
            position = position + is_listening
            speaks = (self.coin(hidden)[:, 0] > 0) | (position == end)
            is_listening = is_listening & ~speaks
            was_said = torch.zeros_like(was_said)
        log_probs = self.output(hidden).log_softmax(-1)
        only_end = torch.full_like(log_probs, -torch.inf)
        only_end[:, EOS] = 0.0
        weights = functional.one_hot((position - 1).clamp_min(0), memory.inputs.shape[1])
        return Stepped(
            torch.where(is_open[:, None], log_probs, only_end),
            OnlineState(hidden, position),
            weights.to(hidden.dtype),
        )


def _refuse_longer_targets(n_inputs: Tensor, n_symbols: Tensor) -> None:
    if (n_symbols > n_inputs).any():
        row = int((n_symbols - n_inputs).argmax())
        raise UsageError(
            f"a target of {int(n_symbols[row])} symbols cannot be said while a source of "
            f"{int(n_inputs[row])} is read",
            hint="this model says at most one symbol at each input",
        )
