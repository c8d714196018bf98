"""What each head is there for: induction, previous and duplicate tokens, names, copying."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.heads import capture, direct_logits
from saccade.investigations.copying import copy_scores
from saccade.investigations.role_scores import (
    duplicate_token_score,
    induction_score,
    previous_token_score,
)
from saccade.investigations.role_texts import name_texts, repeated_blocks

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

Role: TypeAlias = Literal["induction", "previous", "duplicate", "name-mover", "copy"]
ROLES: tuple[Role, ...] = get_args(Role)
# Rows of each generated text: the scores of the default model then move by less than 0.02 from
# seed to seed.
ROWS = 8
NAME_ROWS = 32


@dataclass(frozen=True, kw_only=True)
class Roles:
    """A score of every role for every head, and the sites in their order."""

    model: str
    seed: int
    scores: dict[Role, dict[int, Float[Tensor, " head"]]]
    """Role -> layer -> one figure a head."""

    def ranked(self, role: Role, n: int = 5) -> list[tuple[int, int, float]]:
        """The heads that play a role most: layer, head, score."""
        every = [
            (layer, head, float(score))
            for layer, row in self.scores[role].items()
            for head, score in enumerate(row)
        ]
        return sorted(every, key=lambda each: -each[2])[:n]

    def to_json(self) -> str:
        """One JSON object."""
        layers = next(iter(self.scores.values()))
        heads = [
            {"layer": layer, "head": head}
            | {role: float(rows[layer][head]) for role, rows in self.scores.items()}
            for layer, row in layers.items()
            for head in range(len(row))
        ]
        return json.dumps({"model": self.model, "seed": self.seed, "heads": heads})


@torch.no_grad()
def find_roles(model: LanguageModel, *, roles: tuple[Role, ...] = ROLES, seed: int = 0) -> Roles:
    """Score every head for every role, each by its published definition, on generated text.

    - induction, previous, duplicate: mean attention weights on repeated random tokens, in [0, 1];
      see `saccade.investigations.role_scores`.
    - name-mover: what the head adds directly to the logit of the name said once, less that of the
      name said twice (Wang et al., 2022, https://arxiv.org/abs/2211.00593, section 3.1), times the
      weight with which the last token looks at the name said once. They show the two on the axes
      of a figure, and call the heads that have both name movers; the product is one number that
      wants both.
    - copy: see `saccade.investigations.copying.copy_scores`, for the names, in [0, 1].
    """
    found: dict[Role, dict[int, Tensor]] = {}
    if {"induction", "previous", "duplicate"} & {*roles}:
        found.update(_attention_roles(model, seed))
    if {"name-mover", "copy"} & {*roles}:
        found.update(_name_roles(model, seed))
    return Roles(model=model.name, seed=seed, scores={role: found[role] for role in roles})


def checked_roles(asked: Sequence[str]) -> tuple[Role, ...]:
    """The roles of these names, in the order of `ROLES`."""
    if unknown := [name for name in asked if name not in ROLES]:
        near = difflib.get_close_matches(unknown[0], ROLES, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"no role {unknown[0]!r}", hint=f"{guess}roles are {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in asked)


def _attention_roles(model: LanguageModel, seed: int) -> dict[Role, dict[int, Tensor]]:
    text = repeated_blocks(model, rows=ROWS, seed=seed)
    found: dict[Role, dict[int, Tensor]] = {"induction": {}, "previous": {}, "duplicate": {}}
    weights = capture(
        model, text.ids, layers=[], attention=[at.index for at in model.layers]
    ).attention
    for layer, each in weights.items():
        found["induction"][layer] = induction_score(each, block=text.block, start=text.start)
        found["duplicate"][layer] = duplicate_token_score(each, block=text.block, start=text.start)
        found["previous"][layer] = previous_token_score(each)
    return found


def _name_roles(model: LanguageModel, seed: int) -> dict[Role, dict[int, Tensor]]:
    text = name_texts(model, rows=NAME_ROWS, seed=seed)
    layers = [at.index for at in model.layers]
    captured = capture(model, text.ids, residual=True, attention=layers, attention_positions=[-1])
    rows = torch.arange(len(text.ids))
    movers: dict[int, Tensor] = {}
    for at in model.layers:
        looks = captured.attention[at.index][rows, :, 0, text.place.cpu()].float()
        if not at.reaches_stream:
            movers[at.index] = torch.full((at.n_heads,), float("nan"))
            continue
        once, twice = (
            direct_logits(model, captured, at.index, name[:, None], positions=[-1])[:, 0]
            for name in (text.once, text.twice)
        )
        movers[at.index] = ((once - twice).mean(0) * looks.to(once.device).mean(0)).cpu()
    return {"name-mover": movers, "copy": copy_scores(model, text.ids, text.place)}
