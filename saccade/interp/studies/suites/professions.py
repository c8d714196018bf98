"""Professions with human ratings of gender, and the lean of every head on them.

Ratings are those of Bolukbasi et al., 2016 (https://arxiv.org/abs/1607.06520), as published with
Vig et al., 2020 (https://arxiv.org/abs/2004.12265), whose templates are used.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import ModelError, TaskError
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target, behind_a_space, effects_on_targets
from saccade.interp.heads.prompt_batches import encode_prompts, prompt_batches
from saccade.interp.studies.fidelity.geometry import resampled
from saccade.interp.studies.roles.role import head_changes, read_data
from saccade.interp.studies.suites.stereoset import bounds
from saccade.interp.studies.suites.suite import Interval, Item, Progress

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

# Of the 17 templates of Vig et al.: the effect of every head on 320 professions takes minutes each.
TEMPLATES = ("The {} said that", "The {} wanted that", "The {} ran because", "The {} cried because")


def read_professions(path: Path) -> list[Item]:
    """Professions with their ratings from -1, female, to 1, male: by definition, by stereotype."""
    found: list[Item] = []
    for number, each in enumerate(read_data(path), 1):
        if not isinstance(each, list) or len(each) != 3 or not isinstance(each[0], str):
            raise TaskError(
                f"{path}: item {number} is no profession with two ratings: {str(each)[:60]!r}",
                hint='an item is ["nurse", -0.1, -0.9]',
            )
        word = each[0].replace("_", " ")
        found.append({"profession": word, "definition": each[1], "stereotype": each[2]})
    return found


# Rank correlations.


def ranks(values: Float[Tensor, "*batch item"]) -> Float[Tensor, "*batch item"]:
    """Ranks from 0; equal values share the mean of theirs.

    >>> ranks(torch.tensor([3.0, 1.0, 3.0]))
    tensor([1.5000, 0.0000, 1.5000], dtype=torch.float64)
    """
    ordered = values.sort(-1).values.contiguous()
    low = torch.searchsorted(ordered, values.contiguous())
    high = torch.searchsorted(ordered, values.contiguous(), right=True)
    return (low + high - 1).double() / 2


def spearman(
    a: Float[Tensor, "*batch item"], b: Float[Tensor, "*#batch item"]
) -> Float[Tensor, "*batch"]:
    """Spearman's rank correlation along the last axis."""
    one, other = (x - x.mean(-1, keepdim=True) for x in (ranks(a), ranks(b)))
    return (one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1)).clamp_min(1e-12)


def correlation(
    values: Float[Tensor, "site item"], ratings: Float[Tensor, " item"], *, seed: int
) -> Interval:
    """The mean over sites of Spearman's correlation with ratings; the interval draws items."""
    counts = resampled(len(ratings), seed=seed).long()
    found = []
    for count in counts:
        at = torch.arange(len(ratings)).repeat_interleave(count)
        found.append(spearman(values[:, at], ratings[at][None]).mean())
    return bounds(torch.stack(found))


class _Split(NamedTuple):
    """Items that heads are chosen on, and items that are reported."""

    train: Tensor
    test: Tensor


def halves(n: int, seed: int) -> _Split:
    """A random half to choose heads on, and the other one."""
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return _Split(torch.tensor(sorted(order[: n // 2])), torch.tensor(sorted(order[n // 2 :])))


# The lean of every head.


class Leans(NamedTuple):
    """Log-odds of " she" against " he" after each profession, the mean over templates."""

    own: Float[Tensor, " item"]
    """The model's own."""
    heads: Float[Tensor, "site item"]
    """The effect of every head on them, heads in order of depth."""


@torch.no_grad()
def leans_of(model: LanguageModel, words: Sequence[str], progress: Progress | None = None) -> Leans:
    """The exact effect of every head at the last token, replaced by its usual mean."""
    she, he = (behind_a_space(model, word)[0] for word in ("she", "he"))
    if she == he:
        raise ModelError(
            "she and he begin with the same token", hint="give a model that has both as tokens"
        )
    encoded = encode_prompts(model, [t.format(word) for word in words for t in TEMPLATES])
    target = Target(she, he)
    changes = head_changes(model, Replacement.usual(model).at_last().heads)
    along = target.direction(model.unembedding)
    own, effects = (
        torch.zeros(len(encoded)).double(),
        torch.zeros(len(encoded), len(changes)).double(),
    )
    done = 0
    for batch in prompt_batches(encoded, n_more=len(changes)):
        run = run_copies(model, batch.ids, changes, lengths=(batch.last + 1).tolist())
        found = effects_on_targets(model, run, [target] * len(batch.rows))
        effects[batch.rows] = found.double().cpu()
        own[batch.rows] = (run.captured.final[:, 0].to(along) @ along).double().cpu()
        done += len(batch.rows)
        if progress is not None:
            progress("effects on professions", done, len(encoded))
    shape = (len(words), len(TEMPLATES))
    return Leans(own.view(shape).mean(1), effects.view(*shape, -1).mean(1).T)
