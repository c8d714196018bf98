"""Fit a guard on ordinary prompts: half of the work is to make requests stand where none belong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.investigations.guard import Guard, threshold_for
from saccade.investigations.guard_discriminant import Discriminant
from saccade.investigations.guard_features import HeadSums, Readout
from saccade.investigations.guard_requests import splice_requests
from saccade.investigations.prompt_batches import encode_prompts, prompt_rows

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses

Progress = Callable[[str, int, int], None]
FEWEST = 20  # ordinary prompts: of fewer, one in twenty cannot be told
# Prompts that the directions of the heads are found on; they are read twice.
LOOKED_AT = 128
FOLDS = 4  # a prompt's own ordinary score comes from a fit without its fold


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """How a guard reads and when it reports."""

    window: int = 9
    """Tokens in a stretch; less than a sentence."""

    false_alarms: float = 0.05
    """Share of ordinary prompts that may be reported."""

    seed: int = 0
    """Seed of the requests and of the places they are put in."""


def fit_guard(
    lenses: Lenses,
    prompts: Sequence[str],
    *,
    config: GuardConfig | None = None,
    source: str = "",
    progress: Progress | None = None,
) -> Guard:
    """Learn from ordinary prompts what the heads of a model say over them; no attack is needed.

    Args:
        source: where the prompts come from; kept with the guard.

    Raises:
        UsageError: too few prompts, or a setting that cannot be.
    """
    config = config or GuardConfig()
    _check(prompts, config, lenses.model.max_positions)
    plain = encode_prompts(lenses.model, prompts)
    spliced = encode_prompts(lenses.model, splice_requests(prompts, seed=config.seed))
    readout = _look(lenses, plain, config)
    read = _read(lenses, readout, [*plain, *spliced], progress)
    ordinary = _crossed(read).sort().values
    return Guard(
        lenses=lenses,
        readout=readout,
        discriminant=_discriminant(read),
        ordinary=ordinary,
        threshold=threshold_for(ordinary, config.false_alarms),
        false_alarms=config.false_alarms,
        source=source,
    )


def _check(prompts: Sequence[str], config: GuardConfig, max_positions: int | None) -> None:
    if len(prompts) < FEWEST:
        raise UsageError(
            f"expected at least {FEWEST} ordinary prompts, got {len(prompts)}",
            hint="some hundred of the kind you expect make a good guard",
        )
    longest = max_positions or 1_000_000
    if not 0 < config.false_alarms < 1 or not 1 <= config.window <= longest:
        raise UsageError(
            f"cannot fit a guard with window {config.window} and {config.false_alarms} false "
            "alarms",
            hint=f"give a window of 1 to {longest} tokens, and a share of false alarms between 0 "
            "and 1",
        )


def _look(lenses: Lenses, plain: Sequence[Tensor], config: GuardConfig) -> Readout:
    """Find the directions of every head on some of the prompts."""
    sums = HeadSums()
    some = plain[:: -(-len(plain) // LOOKED_AT)]
    for row in prompt_rows(lenses.model, some, layers=list(lenses.by_layer)):
        sums.add(row.z)
    return sums.readout(lenses, window=config.window, stride=max(1, config.window // 3))


def _read(
    lenses: Lenses, readout: Readout, encoded: Sequence[Tensor], progress: Progress | None
) -> list[Float[Tensor, "_ feature"]]:
    """The stretches of every prompt."""
    found: dict[int, Tensor] = {}
    for row in prompt_rows(lenses.model, encoded, layers=list(lenses.by_layer)):
        found[row.prompt] = readout.points(row.z).features.float()
        if progress is not None:
            progress("reading prompts", len(found), len(encoded))
    return [found[row] for row in range(len(encoded))]


def _discriminant(read: Sequence[Tensor]) -> Discriminant:
    """Of prompts, then as many with a request."""
    return Discriminant.fit(read, torch.arange(len(read)) >= len(read) // 2)


def _crossed(read: Sequence[Tensor]) -> Float[Tensor, " prompt"]:
    """The score of each ordinary prompt by a fit without it and its spliced twin."""
    n = len(read) // 2
    scores = torch.zeros(n, dtype=torch.double)
    for fold in range(FOLDS):
        fitted = _discriminant([each for row, each in enumerate(read) if row % n % FOLDS != fold])
        for row in range(fold, n, FOLDS):
            scores[row] = fitted.log_odds(read[row]).max()
    return scores
