"""The hybrid translator: words where they are frequent, characters where they are rare.

Luong and Manning, 2016 (https://arxiv.org/abs/1604.00788). It reads and predicts words. An unknown
source word gets an embedding from a character LSTM; where it predicts <unk>, another character LSTM
spells the word. So the vocabulary is open, and only rare words cost more.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from saccade.zoo.attention.attend import Attention, Memory
from saccade.zoo.attention.scores import BilinearScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.cells.cell import map_tensors, tensors_of
from saccade.zoo.cells.lstm import LstmCell, LstmState
from saccade.zoo.cells.stacks import make_stack
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.fast.dropout import Dropout
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.rare_words import (
    END_OF_WORD,
    FIRST_WORD,
    compress,
    find_spellings,
    is_spelling,
)
from saccade.zoo.tasks.vocabulary import EOS, UNK, Padded

NEVER = -1e4  # a logit whose probability is exactly zero, but finite in sums


class Source(NamedTuple):
    """An encoded source sentence."""

    memory: Memory
    """Keys and values of its words."""
    place: Int[Tensor, "sentence word"]
    """The position of each word among the tokens."""
    mask: Bool[Tensor, "sentence source_pos"]
    """Of the tokens."""


class HybridState(NamedTuple):
    """State of the decoder."""

    word: Any
    """Of the word level, after the last started word."""
    letter: LstmState
    """Of the character level, after the last character."""
    weights: Float[Tensor, "row source_pos"]
    """Attention weights of the last word, shared by its characters."""


class Step(NamedTuple):
    """Output of a step of the word level."""

    logits: Float[Tensor, "*at d_vocab"]
    first: Float[Tensor, "*at d_letter"]
    """Initial state of the character level if the word is <unk>."""


class HybridTranslator(nn.Module):
    """``p(y) = prod p(word) * prod p(letter)``: the second over the words that are spelled.

    The text is in the form of `SpelledWords`: ``<unk> M i k i </w>`` for a rare word. The word
    level (section 3) is Luong's: LSTMs with bilinear attention from the top layer, and ``h~ =
    tanh(W [c ; h])`` to predict a word. The character level (section 4) reads the letters of a rare
    source word, its last state is the word's embedding; and spells a rare target word from
    ``tanh(W' [c ; h])``, the paper's separate path. The loss is the plain sum of both (equation 8
    with alpha = 1), which is the likelihood of the tokens.

    Where we differ: the paper first searches for words and then spells each <unk> by itself; here a
    beam holds words and letters alike, so that the score of a hypothesis includes its spelling.
    ``h~`` is not fed to the next step, so that the whole target runs through the fused kernel at
    once.
    """

    no_word: Tensor
    """Mask added to the logits of a word: it is never a letter."""
    no_letter: Tensor

    def __init__(
        self,
        *,
        n_source: int,
        n_target: int,
        d_model: int = 256,
        d_letter: int = 128,
        n_layers: int = 2,
        dropout: float = 0.2,
    ) -> None:
        super().__init__()
        self.source_embed = nn.Embedding(n_source, d_model)
        self.target_embed = nn.Embedding(n_target, d_model)
        self.encoder = make_stack("lstm", d_model, d_model, n_layers=n_layers, dropout=dropout)
        self.decoder = make_stack("lstm", d_model, d_model, n_layers=n_layers, dropout=dropout)
        self.attention = Attention(BilinearScore(d_query=d_model, d_key=d_model), SoftSelect())
        self.attentional = nn.Linear(2 * d_model, d_model, bias=False)
        self.output = nn.Linear(d_model, n_target)
        self.source_letters = nn.Embedding(FIRST_WORD, d_letter)
        self.reader = LstmCell(d_letter, d_model)
        self.target_letters = nn.Embedding(FIRST_WORD, d_letter)
        self.separate = nn.Linear(2 * d_model, d_letter, bias=False)
        self.speller = LstmCell(d_letter, d_letter)
        self.letter_output = nn.Linear(d_letter, FIRST_WORD)
        self.dropout = Dropout(dropout)
        at = torch.arange(n_target)
        is_word = (at >= FIRST_WORD) | (at == UNK) | (at == EOS)
        self.register_buffer("no_word", torch.where(is_word, 0.0, NEVER), persistent=False)
        letters = torch.arange(FIRST_WORD)
        self.register_buffer(
            "no_letter", torch.where(letters >= END_OF_WORD, 0.0, NEVER), persistent=False
        )

    def read(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Started:
        """Encode the source, unknown words by their letters; and the decoder's initial state."""
        kept = compress(mask & ((source < END_OF_WORD) | (source >= FIRST_WORD)))
        embedded = self.source_embed(source)  # [batch, source_pos, d_model]
        rare = find_spellings(source)
        if len(rare.row):
            letters = self.dropout(self.source_letters(rare.letters))
            composed = self.reader.unroll(letters, mask=rare.mask).state.hidden
            embedded = embedded.index_put((rare.row, rare.place), composed.to(embedded.dtype))
        index = kept.place[:, :, None].expand(-1, -1, embedded.shape[2])
        words = self.dropout(embedded.gather(1, index))  # [batch, word, d_model]
        outputs, state = self.encoder.unroll(words, mask=kept.mask)
        memory = self.attention.remember(outputs, mask=kept.mask)
        return Started(Source(memory, kept.place, mask), state)

    def say(
        self, hidden: Float[Tensor, "*at d_model"], context: Float[Tensor, "*at d_model"]
    ) -> Step:
        """Logits of the next word, and the initial state of its spelling."""
        both = torch.cat([context, hidden], dim=-1)
        attentional = self.dropout(torch.tanh(self.attentional(both)))
        return Step(self.output(attentional) + self.no_word, torch.tanh(self.separate(both)))

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions, with teacher forcing."""
        source, state = self.read(batch.source, batch.source_mask)
        spells = is_spelling(batch.target_in)  # [batch, pos]
        kept = compress(batch.target_mask & ~spells)
        after = _last_word(batch.target_in).gather(1, kept.place)  # [batch, word]
        hidden = self.decoder.unroll(self.dropout(self.target_embed(after)), state).outputs
        context = self.attention(hidden, source.memory).context
        step = self.say(hidden[kept.mask], context[kept.mask])
        rare = find_spellings(batch.target_in)
        # A spelling starts where the word level has predicted <unk>: one word step before it.
        steps = (batch.target_mask & ~spells).flatten().cumsum(0) - 1
        begins = steps[rare.row * spells.shape[1] + rare.place]
        letters = self._spell(rare.letters, rare.mask, step.first[begins])
        order = spells[batch.target_mask].to(torch.uint8).argsort(stable=True).argsort()
        return torch.cat([step.logits, letters])[order]

    def _spell(
        self,
        letters: Int[Tensor, "word letter"],
        mask: Bool[Tensor, "word letter"],
        first: Float[Tensor, "word d_letter"],
    ) -> Float[Tensor, "token d_vocab"]:
        """Logits of what follows each letter of the spelled words."""
        if not len(letters):
            return self.no_word.new_zeros(0, len(self.no_word))
        inputs = self.dropout(self.target_letters(letters))
        start = LstmState(first, torch.zeros_like(first))
        return self._letter(self.speller.unroll(inputs, start).outputs[mask])

    def _letter(self, hidden: Float[Tensor, "*at d_letter"]) -> Float[Tensor, "*at d_vocab"]:
        logits = self.letter_output(self.dropout(hidden)) + self.no_letter
        return functional.pad(logits, (0, len(self.no_word) - FIRST_WORD), value=NEVER)

    def start(self, source: Padded) -> Started:
        """Read the source."""
        known, state = self.read(source.ids, source.mask)
        letter = self.speller.start(len(source.ids))
        weights = torch.zeros(source.ids.shape, device=source.ids.device)
        return Started(known, HybridState(state, letter, weights))

    def step(self, tokens: Int[Tensor, " row"], memory: Source, state: HybridState) -> Stepped:
        """Predict what follows ``tokens``: a letter within a spelling, else a word."""
        hidden, word = self.decoder.step(self.target_embed(_last_word(tokens)), state.word)
        query = hidden.unflatten(0, (len(memory.mask), -1))  # [sentence, beam, d_model]
        attended = self.attention(query, memory.memory)
        said = self.say(hidden, attended.context.flatten(0, 1))
        fresh = LstmState(said.first, torch.zeros_like(said.first))
        of_word = HybridState(word, fresh, _by_token(attended.weights, memory))
        letters = self.target_letters(tokens.clamp_max(FIRST_WORD - 1))
        spelled, letter = self.speller.step(letters, state.letter)
        of_letter = HybridState(state.word, letter, state.weights)
        spells = is_spelling(tokens)
        new = _choose(spells, of_letter, of_word)
        logits = torch.where(spells[:, None], self._letter(spelled), said.logits)
        return Stepped(logits.log_softmax(-1), new, new.weights)


def _last_word(tokens: Int[Tensor, "*at"]) -> Int[Tensor, "*at"]:
    """The word level's input: </w> ends a word that is <unk> to it."""
    return tokens.where(tokens != END_OF_WORD, UNK)


def _by_token(
    weights: Float[Tensor, "sentence beam word"], source: Source
) -> Float[Tensor, "row source_pos"]:
    """The weight of each word at its token; of a spelled word, at its <unk>."""
    at = source.place[:, None].expand_as(weights)
    spread = weights.new_zeros(*weights.shape[:2], source.mask.shape[1])
    return spread.scatter_add(2, at, weights).flatten(0, 1)


def _choose(is_first: Bool[Tensor, " row"], first: Any, second: Any) -> Any:
    """Row by row one of two states."""
    others = iter(tensors_of(second))
    return map_tensors(lambda one: torch.where(is_first[:, None], one, next(others)), first)
