"""The figure that heads are ranked by: a word's logit, against another word's or all others'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.investigations.bias_words import behind_a_space

if TYPE_CHECKING:
    from saccade.heads import LanguageModel, Unembedding


@dataclass(frozen=True)
class Target:
    """The logit of a word less that of another, or less the mean of all words.

    The difference of two logits is that of Wang et al., 2022 (https://arxiv.org/abs/2211.00593),
    section 2.2. Without a second word the mean takes its place: a number that is added to all
    logits is no prediction, and would count for a head all the same.
    """

    word: int
    against: int | None = None

    def score(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch"]:
        """The figure of a prediction."""
        other = logits.mean(-1) if self.against is None else logits[..., self.against]
        return logits[..., self.word] - other

    def direction(self, unembedding: Unembedding) -> Float[Tensor, " d_model"]:
        """What a final state is multiplied with to give the figure, but for bias and soft-cap."""
        weight = unembedding.weight.float()
        other = weight.mean(0) if self.against is None else weight[self.against]
        return (weight[self.word] - other) * unembedding.scale


def first_token(model: LanguageModel, word: str, text: str) -> int:
    """The token with which the model would begin a word after a text.

    A word given with its own space, or behind a text that ends in one, is taken as it is.
    """
    if not word.strip():
        raise UsageError(f"the word is empty: {word!r}", hint='give a word, such as " Paris"')
    if word[0].isspace() or not text[-1:].isspace():
        return behind_a_space(model, word.strip())[0]
    before = model.encode("a").shape[1]
    return int(model.encode(f"a{word}")[0, before])


def several_tokens(model: LanguageModel, word: str) -> str | None:
    """A note for a word of several tokens, of which the first stands for it; None for others."""
    ids = behind_a_space(model, word.strip())
    if len(ids) < 2:
        return None
    return f"note: {word!r} is {len(ids)} tokens; {model.words(ids)[0]!r} stands for it"


def find_target(model: LanguageModel, text: str, word: str, against: str | None = None) -> Target:
    """The figure for words as a user writes them; of several tokens the first stands for each."""
    ids = [first_token(model, each, text) for each in (word, against) if each is not None]
    if len(ids) == 2 and ids[0] == ids[1]:
        shown = model.words(ids)[0]
        raise UsageError(
            f"{word!r} and {against!r} begin with the same token, {shown!r}",
            hint="give words whose first tokens differ",
        )
    return Target(*ids)
