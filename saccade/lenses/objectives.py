"""What a lens is trained towards.

An objective compares the lens's logits with a `Target` and gives one loss for each position and
lens. To add one, decorate a function of that form with `register_objective`; every command then
knows it by its name (docs/guide/own-lens.md).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.errors import UsageError


class Target(NamedTuple):
    """What the model makes of the same positions."""

    log_probs: Float[Tensor, "n d_vocab"]
    """The model's own prediction."""
    next_ids: Int[Tensor, " n"]
    """The word that really follows."""
    input_ids: Int[Tensor, "n pos"]
    """The text up to and including each position; what lies beyond it is masked."""
    input_mask: Bool[Tensor, "n pos"]
    """True = part of the text so far."""


Objective = Callable[[Float[Tensor, "n head d_vocab"], Target], Float[Tensor, "n head"]]

_OBJECTIVES: dict[str, Objective] = {}


def register_objective(name: str) -> Callable[[Objective], Objective]:
    """Make an objective known by its name; used as a decorator.

    >>> @register_objective("squared")
    ... def squared(logits, target):
    ...     return (logits.softmax(-1) - target.log_probs.exp()[:, None]).square().sum(-1)
    >>> find_objective("squared") is squared
    True
    """

    def add(objective: Objective) -> Objective:
        _OBJECTIVES[name] = objective
        return objective

    return add


def objectives() -> tuple[str, ...]:
    """The names of the objectives that are known."""
    return tuple(sorted(_OBJECTIVES))


def find_objective(name: str) -> Objective:
    """The objective that has this name."""
    if name not in _OBJECTIVES:
        near = difflib.get_close_matches(name, _OBJECTIVES, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(
            f"no objective {name!r}: known are {', '.join(objectives())}",
            hint=f"{guess}a file with an objective of your own is named with `--plugin FILE.py`",
        )
    return _OBJECTIVES[name]


@register_objective("kl")
def kl(logits: Float[Tensor, "n head d_vocab"], target: Target) -> Float[Tensor, "n head"]:
    """KL(model || lens): the lens must cover all that the model finds likely.

    The direction that the authors' code of Attention Lens computes, and convex in a linear lens.
    """
    model = target.log_probs[:, None]  # [n, 1, d_vocab]
    return (model.exp() * (model - logits.log_softmax(-1))).sum(-1)


@register_objective("reverse-kl")
def reverse_kl(logits: Float[Tensor, "n head d_vocab"], target: Target) -> Float[Tensor, "n head"]:
    """KL(lens || model): the lens may only say what the model finds likely.

    Attention Lens (https://arxiv.org/abs/2310.16270), equation 1 as printed.
    """
    lens = logits.log_softmax(-1)
    return (lens.exp() * (lens - target.log_probs[:, None])).sum(-1)


@register_objective("cross-entropy")
def cross_entropy(
    logits: Float[Tensor, "n head d_vocab"], target: Target
) -> Float[Tensor, "n head"]:
    """The surprise of the word that really follows, instead of the model's prediction of it."""
    log_probs = logits.log_softmax(-1)
    index = target.next_ids[:, None, None].expand(-1, logits.shape[1], 1)
    return -log_probs.gather(-1, index).squeeze(-1)


@register_objective("input")
def input_relevance(
    logits: Float[Tensor, "n head d_vocab"], target: Target
) -> Float[Tensor, "n head"]:
    """The mean surprise of the words of the prompt: relevance to the input, not the prediction.

    Attention Lens, section 2, names this as the authors' hypothesis and leaves it to future work.
    Each occurrence of a word in the text so far counts once.
    """
    log_probs = logits.log_softmax(-1)
    words = target.input_ids[:, None].expand(-1, logits.shape[1], -1)  # [n, head, pos]
    surprise = -log_probs.gather(-1, words)
    mask = target.input_mask[:, None]
    return torch.where(mask, surprise, 0.0).sum(-1) / mask.sum(-1)
