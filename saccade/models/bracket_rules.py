"""Which symbols can follow in a linearised tree: every bracket closed, every word in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from saccade.errors import UsageError
from saccade.tasks.linearised import WORD
from saccade.tasks.symbols import EOS, SYMBOLS

# The deepest tree of the treebank's sample is 28 brackets deep, and none has as many as two for
# each word; sentences of others may need a little more.
MAX_DEPTH, BRACKETS_A_WORD = 48, 3


class OpenBrackets(NamedTuple):
    """How far each of several trees is written."""

    labels: Int[Tensor, "row depth"]
    """Of the open brackets, the outermost first; unused beyond ``depth``."""
    depth: Int[Tensor, " row"]
    n_opened: Int[Tensor, " row"]
    """Brackets opened since the last word or closing bracket."""
    n_left: Int[Tensor, " row"]
    """Words that have no place yet."""
    n_spare: Int[Tensor, " row"]
    """Brackets that may still be opened."""

    @property
    def top(self) -> Int[Tensor, " row"]:
        """The label of the innermost open bracket; any one where none is open."""
        return self.labels.gather(1, (self.depth - 1).clamp_min(0)[:, None])[:, 0]


class BracketRules(nn.Module):
    """The rules of writing one tree over a given number of words, for many trees at once.

    One bracket holds everything; a bracket holds something; a closing bracket has the label of the
    innermost open one; words come as often as the sentence has them; and there are not more than
    so many brackets for each. Whoever keeps to `legal` can
    always go on and always comes to an end, so nothing needs repair.

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
                f"no trees can be written with these symbols: {' '.join(wrong) or 'no ' + WORD}",
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
        """No tree over so many words takes more: words, brackets both ways, the end."""
        return (1 + 2 * BRACKETS_A_WORD) * n_words + 1

    def begin(self, n_words: Int[Tensor, " row"]) -> OpenBrackets:
        """Nothing is written."""
        labels = torch.zeros(len(n_words), MAX_DEPTH, dtype=torch.long, device=n_words.device)
        zero = torch.zeros_like(n_words)
        return OpenBrackets(labels, zero, zero, n_words, BRACKETS_A_WORD * n_words)

    def after(self, tokens: Int[Tensor, " row"], brackets: OpenBrackets) -> OpenBrackets:
        """What the next symbol of each tree makes of it; BOS and PAD change nothing."""
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
        """For sequences that are known: what may come after each symbol."""
        brackets, found = self.begin(n_words), []
        for column in tokens.unbind(1):
            brackets = self.after(column, brackets)
            found.append(self.legal(brackets))
        return torch.stack(found, dim=1)
