"""The score that effects are measured on: a token's logit minus another token's, or the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.heads.onednn import fast_products

if TYPE_CHECKING:
    from saccade.interp.effects.joined_pass import CopyRun
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.heads.residual_path import Unembedding


@dataclass(frozen=True)
class Target:
    """The logit of a token minus that of another, or minus the mean of all tokens.

    The difference of two logits is that of Wang et al., 2022 (https://arxiv.org/abs/2211.00593),
    section 2.2. Without a second token we subtract the mean: a constant added to all logits does
    not change the prediction, and must not count for a head.
    """

    token: int
    against: int | None = None

    def score(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch"]:
        """The score of a prediction."""
        other = logits.mean(-1) if self.against is None else logits[..., self.against]
        return logits[..., self.token] - other

    def direction(self, unembedding: Unembedding) -> Float[Tensor, " d_model"]:
        """The direction whose product with a final state is the score, except bias and soft-cap."""
        weight = unembedding.weight.float()
        other = weight.mean(0) if self.against is None else weight[self.against]
        return (weight[self.token] - other) * unembedding.scale

    def names(self, model: LanguageModel) -> tuple[str, str | None]:
        """Both tokens as text."""
        first, *rest = model.tokens([self.token, *([] if self.against is None else [self.against])])
        return first, rest[0] if rest else None


# Logits in memory at once: 96 rows are 19 MB for a vocabulary of 49,152. A product with fewer rows
# spends its time on reading the unembedding.
LOGIT_ROWS = 96


@torch.no_grad()
def effects_on_targets(
    model: LanguageModel, run: CopyRun, targets: Sequence[Target]
) -> Float[Tensor, "batch copy"]:
    """How far the score of each prompt's target falls in each copy: `Effect.on_token` alone.

    The score is a linear map of the final state, so it needs no logits; with a soft-cap it is not,
    and they are computed.
    """
    unembedding = model.unembedding
    rows = []
    for row, target in enumerate(targets):
        own, states = run.captured.final[row, 0], run.states[row]
        if unembedding.softcap is None:
            along = target.direction(unembedding)
            rows.append((own.to(along) - states.to(along)) @ along)
            continue
        with fast_products():
            score = target.score(unembedding.logits(own).float())
            parts = states.split(LOGIT_ROWS)
            rows.append(
                torch.cat([score - target.score(unembedding.logits(p).float()) for p in parts])
            )
    return torch.stack(rows)


def first_token(model: LanguageModel, token: str, text: str) -> int:
    """The first token of a word after a text.

    A word given with its own space, or after a text that ends in one, is taken as it is.
    """
    if not token.strip():
        raise UsageError(f"the token is empty: {token!r}", hint='give a token, such as " Paris"')
    if token[0].isspace() or not text[-1:].isspace():
        return behind_a_space(model, token.strip())[0]
    before = model.encode("a").shape[1]
    return int(model.encode(f"a{token}")[0, before])


def several_tokens(model: LanguageModel, token: str) -> str | None:
    """A note for a word of several tokens, of which only the first is used; else None."""
    ids = behind_a_space(model, token.strip())
    if len(ids) < 2:
        return None
    return f"note: {token!r} is {len(ids)} tokens; {model.tokens(ids)[0]!r} stands for it"


def find_target(model: LanguageModel, text: str, token: str, against: str | None = None) -> Target:
    """The target for words as a user writes them; of several tokens the first is used."""
    ids = [first_token(model, each, text) for each in (token, against) if each is not None]
    if len(ids) == 2 and ids[0] == ids[1]:
        shown = model.tokens(ids)[0]
        raise UsageError(
            f"{token!r} and {against!r} begin with the same token, {shown!r}",
            hint="give words whose first tokens differ",
        )
    return Target(*ids)


def behind_a_space(model: LanguageModel, word: str) -> tuple[int, ...]:
    """The tokens of a word in the middle of a text."""
    # After another word, because some tokenizers drop or add a space at the start of a text.
    before = model.encode("a")[0].tolist()
    whole = model.encode(f"a {word}")[0].tolist()
    if whole[: len(before)] != before or len(whole) == len(before):
        raise UsageError(
            f"the word {word!r} has no tokens of its own", hint="give words made of letters"
        )
    return tuple(whole[len(before) :])
