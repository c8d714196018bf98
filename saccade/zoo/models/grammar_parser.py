"""Grammar as a foreign language: a translator from sentences to linearised parse trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.zoo.attention.attend import Attention, Memory
from saccade.zoo.attention.masks import masked_log_softmax
from saccade.zoo.attention.scores import BilinearScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.cells.cell import Cell
from saccade.zoo.cells.lstm import LockedDropout, LstmCell
from saccade.zoo.cells.stacks import Bidirectional
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.tasks.pairs import PairBatch
from saccade.zoo.tasks.treebank import WORD
from saccade.zoo.tasks.vocabulary import EOS, SYMBOLS, Padded

# Which symbols can follow in a linearised tree: balanced brackets, all words placed.

# The deepest tree of the treebank's sample is 28 brackets deep, and none has as many as two for
# each word; sentences of others may need a little more.
MAX_DEPTH, BRACKETS_A_WORD = 48, 3


class OpenBrackets(NamedTuple):
    """The state of several partial trees."""

    labels: Int[Tensor, "row depth"]
    """Labels of the open brackets, outermost first; unused beyond ``depth``."""
    depth: Int[Tensor, " row"]
    n_opened: Int[Tensor, " row"]
    """Brackets opened since the last word or closing bracket."""
    n_left: Int[Tensor, " row"]
    """Words not placed yet."""
    n_spare: Int[Tensor, " row"]
    """Brackets that may still be opened."""

    @property
    def top(self) -> Int[Tensor, " row"]:
        """The label of the innermost open bracket; arbitrary where none is open."""
        return self.labels.gather(1, (self.depth - 1).clamp_min(0)[:, None])[:, 0]


class BracketRules(nn.Module):
    """The rules of one linearised tree over a given number of words, for many trees at once.

    One bracket contains everything; no bracket is empty; a closing bracket has the label of the
    innermost open one; there are as many words as in the sentence; and the number of brackets per
    word is limited. Any sequence of `legal` symbols can be completed and ends, so nothing needs
    repair.

    Args:
        pieces: How each symbol is written: the four of `SYMBOLS`, XX, ``(S``, ``)S`` and so on.
    """

    is_word: Tensor
    is_open: Tensor
    is_close: Tensor
    label: Tensor

    def __init__(self, pieces: Sequence[str]) -> None:
        super().__init__()
        inside = pieces[len(SYMBOLS) :]
        labels = sorted({piece[1:] for piece in inside if piece != WORD})
        wrong = [p for p in inside if p != WORD and (p[0] not in "()" or not p[1:])]
        wrong += [p for label in labels for p in (f"({label}", f"){label}") if p not in inside]
        if wrong or WORD not in inside:
            raise UsageError(
                f"these symbols cannot form trees: {' '.join(wrong) or 'no ' + WORD}",
                hint=f"{WORD} for words, and each label with both brackets: (NP )NP",
            )
        self.labels = tuple(labels)
        known = {**{label: at for at, label in enumerate(labels)}, WORD[1:]: 0}
        of = [known.get(piece[1:], 0) for piece in pieces]
        for name, values in (
            ("is_word", [piece == WORD for piece in pieces]),
            ("is_open", [piece[0] == "(" for piece in pieces]),
            ("is_close", [piece[0] == ")" for piece in pieces]),
            ("label", of),
        ):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    @staticmethod
    def most_symbols(n_words: Int[Tensor, " row"]) -> Int[Tensor, " row"]:
        """Maximum number of symbols of a tree: words, opening and closing brackets, the end."""
        return (1 + 2 * BRACKETS_A_WORD) * n_words + 1

    def begin(self, n_words: Int[Tensor, " row"]) -> OpenBrackets:
        """The empty trees."""
        labels = torch.zeros(len(n_words), MAX_DEPTH, dtype=torch.long, device=n_words.device)
        zero = torch.zeros_like(n_words)
        return OpenBrackets(labels, zero, zero, n_words, BRACKETS_A_WORD * n_words)

    def after(self, tokens: Int[Tensor, " row"], brackets: OpenBrackets) -> OpenBrackets:
        """The state after the next symbol of each tree; BOS and PAD change nothing."""
        labels, depth, n_opened, n_left, n_spare = brackets
        opens, closes, word = self.is_open[tokens], self.is_close[tokens], self.is_word[tokens]
        place = depth.clamp_max(MAX_DEPTH - 1)[:, None]
        new = torch.where(opens, self.label[tokens], labels.gather(1, place)[:, 0])
        return OpenBrackets(
            labels.scatter(1, place, new[:, None]),
            depth + opens.long() - closes.long(),
            torch.where(closes | word, 0, n_opened + opens),
            n_left - word.long(),
            n_spare - opens.long(),
        )

    def legal(self, brackets: OpenBrackets) -> Bool[Tensor, "row d_vocab"]:
        """True for the symbols that may come next."""
        is_left, is_inside = brackets.n_left > 0, brackets.depth > 0
        may_open = is_left & (brackets.depth < MAX_DEPTH) & (brackets.n_spare > 0)
        holds_something = brackets.n_opened == 0
        may_close = is_inside & holds_something & ((brackets.depth > 1) | ~is_left)
        is_top = self.label == brackets.top[:, None]
        legal = self.is_word & (is_left & is_inside)[:, None]
        legal |= self.is_open & may_open[:, None]
        legal |= self.is_close & is_top & may_close[:, None]
        legal[:, EOS] = ~is_left & (brackets.depth == 0)
        return legal

    def legal_all_along(
        self, tokens: Int[Tensor, "batch pos"], n_words: Int[Tensor, " batch"]
    ) -> Bool[Tensor, "batch pos d_vocab"]:
        """For known sequences: the legal symbols after each symbol."""
        brackets, found = self.begin(n_words), []
        for column in tokens.unbind(1):
            brackets = self.after(column, brackets)
            found.append(self.legal(brackets))
        return torch.stack(found, dim=1)


class ParserMemory(NamedTuple):
    """An encoded sentence."""

    attended: Memory
    words: Float[Tensor, "sentence source_pos d_word"]


class ParserState(NamedTuple):
    """State of the decoder and its partial trees."""

    cells: tuple
    brackets: OpenBrackets
    n_read: Int[Tensor, " row"]
    """Number of words placed."""


class GrammarParser(nn.Module):
    """Read a sentence, then write its tree as ``(S (NP XX )NP (VP XX )VP )S``, with attention.

    Vinyals et al., 2015 (https://arxiv.org/abs/1412.7449), the model with attention of section 2.1.
    They have 40,000 training sentences and still need 11 million more parsed by another parser; we
    have 3,000. So the model has built-in knowledge:

    - Trees are valid by construction (`BracketRules`): symbols that cannot follow have probability
      zero, in training and decoding. The paper lets the network learn this.
    - After k words the next word is k + 1: the decoder is fed that word's encoding with the last
      symbol. The paper's attention has to find it; ours is free to attend elsewhere.
    - A word also has an embedding of its class (capitals and ending), which helps with rare words.
    - `tag` predicts parts of speech from the encodings, for a second loss.

    The encoder is bidirectional where the paper reads the sentence reversed. Attention is bilinear,
    and feeds only the output, not the decoder's state (Luong et al., 2015,
    https://arxiv.org/abs/1508.04025), so that all steps of training are computed at once.

    Args:
        pieces: How each symbol of the target is written.
        classes: The class of each source word, as a source id.
    """

    classes: Tensor

    def __init__(
        self,
        *,
        pieces: Sequence[str],
        classes: Sequence[int],
        n_tags: int,
        d_embed: int = 100,
        d_hidden: int = 200,
        n_layers: int = 2,
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        d_word = 2 * d_hidden
        self.register_buffer("classes", torch.tensor(classes), persistent=False)
        self.rules = BracketRules(pieces)
        self.source_embed = nn.Embedding(len(classes), d_embed)
        self.target_embed = nn.Embedding(len(pieces), d_embed)
        widths = [d_embed, *[d_word] * (n_layers - 1)]
        self.readers = nn.ModuleList(
            Bidirectional(LstmCell(d, d_hidden), LstmCell(d, d_hidden)) for d in widths
        )
        below = [d_embed + d_word, *[d_word] * (n_layers - 1)]
        self.writers = nn.ModuleList(LstmCell(d, d_word) for d in below)
        self.attention = Attention(BilinearScore(d_query=d_word, d_key=d_word), SoftSelect())
        self.join = nn.Linear(3 * d_word, d_word)
        self.output = nn.Linear(d_word, len(pieces))
        self.tagger = nn.Linear(d_word, n_tags)
        self.dropout = LockedDropout(dropout)

    def forward(self, batch: PairBatch) -> Float[Tensor, "token d_vocab"]:
        """Logits at the real target positions; minus infinity for symbols that cannot follow."""
        return self.write(self.encode(batch.source, batch.source_mask), batch)

    def encode(
        self, source: Int[Tensor, "batch source_pos"], mask: Bool[Tensor, "batch source_pos"]
    ) -> Float[Tensor, "batch source_pos d_word"]:
        """Encode each word in context."""
        words = self.source_embed(source) + self.source_embed(self.classes[source])
        for reader in self.readers:
            assert isinstance(reader, Bidirectional)
            words = reader.unroll(self.dropout(words), mask=mask).outputs
        return self.dropout(words)

    def tag(
        self, encoded: Float[Tensor, "batch source_pos d_word"]
    ) -> Float[Tensor, "batch source_pos n_tags"]:
        """Logits of each word's part of speech."""
        return self.tagger(encoded)

    def write(
        self, encoded: Float[Tensor, "batch source_pos d_word"], batch: PairBatch
    ) -> Float[Tensor, "token d_vocab"]:
        """Logits after each symbol of known trees, over encoded sentences."""
        n_words = batch.source_mask.sum(1) - 1  # without EOS, which means "all words placed"
        n_read = self.rules.is_word[batch.target_in].cumsum(1)
        current = encoded.gather(1, n_read[:, :, None].expand(-1, -1, encoded.shape[2]))
        hidden = torch.cat([self.target_embed(batch.target_in), current], dim=-1)
        for cell in self._cells():
            hidden = self.dropout(cell.unroll(self.dropout(hidden)).outputs)  # [batch, pos, d_word]
        memory = self.attention.remember(encoded, mask=batch.source_mask)
        context = self.attention(hidden, memory).context
        real = batch.target_mask
        logits = self._say(hidden[real], context[real], current[real])  # [token, d_vocab]
        legal = self.rules.legal_all_along(batch.target_in, n_words)[real]
        return logits.masked_fill(~legal, -torch.inf)

    def start(self, source: Padded) -> Started:
        """Read the sentences."""
        encoded = self.encode(source.ids, source.mask)
        n_words = source.mask.sum(1) - 1
        memory = ParserMemory(self.attention.remember(encoded, mask=source.mask), encoded)
        cells = tuple(cell.start(len(encoded)) for cell in self._cells())
        brackets = self.rules.begin(n_words)
        return Started(memory, ParserState(cells, brackets, torch.zeros_like(n_words)))

    def step(
        self, tokens: Int[Tensor, " row"], memory: ParserMemory, state: ParserState
    ) -> Stepped:
        """Predict one symbol; symbols that cannot follow have probability zero."""
        brackets = self.rules.after(tokens, state.brackets)
        n_read = state.n_read + self.rules.is_word[tokens]
        n_sentences = len(memory.words)
        of_sentence = n_read.view(n_sentences, -1, 1).expand(-1, -1, memory.words.shape[2])
        # An abandoned hypothesis may have placed more words than there are.
        of_sentence = of_sentence.clamp_max(memory.words.shape[1] - 1)
        current = memory.words.gather(1, of_sentence).flatten(0, 1)  # [row, d_word]
        hidden, cells = torch.cat([self.target_embed(tokens), current], dim=-1), []
        for cell, old in zip(self._cells(), state.cells, strict=True):
            hidden, new = cell.step(hidden, old)
            cells.append(new)
        attended = self.attention(hidden.unflatten(0, (n_sentences, -1)), memory.attended)
        logits = self._say(hidden, attended.context.flatten(0, 1), current)
        return Stepped(
            masked_log_softmax(logits, self.rules.legal(brackets)),
            ParserState(tuple(cells), brackets, n_read),
            attended.weights.flatten(0, 1),
        )

    def _say(
        self,
        hidden: Float[Tensor, "token d_word"],
        context: Float[Tensor, "token d_word"],
        current: Float[Tensor, "token d_word"],
    ) -> Float[Tensor, "token d_vocab"]:
        joined = torch.tanh(self.join(torch.cat([hidden, context, current], dim=-1)))
        return self.output(joined)

    def _cells(self) -> list[Cell]:
        return [cell for cell in self.writers if isinstance(cell, Cell)]
