"""Fit a guard on ordinary prompts: half of the work is to make requests stand where none belong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import UsageError
from saccade.investigations.guard import Guard
from saccade.investigations.guard_discriminant import Discriminant
from saccade.investigations.guard_features import HeadSums, Points, Readout
from saccade.investigations.guard_requests import added_tokens, splice_requests
from saccade.investigations.prompt_batches import encode_prompts, prompt_rows

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses

Progress = Callable[[str, int, int], None]
FEWEST = 20  # ordinary prompts: of fewer, one in twenty cannot be told
# Prompts of each kind that the directions of the heads are found on; they are read twice.
LOOKED_AT = 128
FOLDS = 4  # a prompt's own ordinary score comes from a fit without its fold
MOSTLY = 0.8  # of the tokens of a stretch: then it is one of the request


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """How a guard reads and when it reports."""

    window: int = 12
    """Tokens in a stretch; less than a sentence."""

    false_alarms: float = 0.05
    """Share of ordinary prompts that may be reported."""

    seed: int = 0
    """Seed of the requests and of the places they are put in."""


class Examples(NamedTuple):
    """Ordinary prompts, then the same number with a request in them."""

    encoded: list[Int[Tensor, " _"]]
    added: list[tuple[int, int]]
    """Where the tokens of the request begin and end; nowhere in an ordinary prompt."""

    @property
    def n(self) -> int:
        """How many of each kind."""
        return len(self.encoded) // 2


class Stretches(NamedTuple):
    """The stretches of one example, apart by what they hold."""

    ordinary: Float[Tensor, "n_ordinary site"]
    request: Float[Tensor, "n_request site"]


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
    _check(prompts, config)
    examples = _examples(lenses, prompts, seed=config.seed)
    readout = _look(lenses, examples, config)
    read = _read(lenses, readout, examples, progress)
    ordinary = _crossed(read, examples.n).sort().values
    at = torch.tensor(1 - config.false_alarms).double()
    return Guard(
        lenses=lenses,
        readout=readout,
        discriminant=_discriminant(read),
        ordinary=ordinary,
        threshold=float(ordinary.quantile(at)),
        source=source,
    )


def _check(prompts: Sequence[str], config: GuardConfig) -> None:
    if len(prompts) < FEWEST:
        raise UsageError(
            f"expected at least {FEWEST} ordinary prompts, got {len(prompts)}",
            hint="some hundred of the kind you expect make a good guard",
        )
    if not 0 < config.false_alarms < 1 or config.window < 1:
        raise UsageError(
            f"cannot fit a guard with window {config.window} and {config.false_alarms} false "
            "alarms",
            hint="give a window of 1 or more, and a share of false alarms between 0 and 1",
        )


def _examples(lenses: Lenses, prompts: Sequence[str], *, seed: int) -> Examples:
    plain = encode_prompts(lenses.model, prompts)
    spliced = encode_prompts(
        lenses.model, [each.text for each in splice_requests(prompts, seed=seed)]
    )
    added = [
        added_tokens(ids.tolist(), without.tolist())
        for ids, without in zip(spliced, plain, strict=True)
    ]
    return Examples([*plain, *spliced], [(0, 0)] * len(plain) + added)


def _look(lenses: Lenses, examples: Examples, config: GuardConfig) -> Readout:
    """Find the direction of every head on some of the examples."""
    every = -(-examples.n // LOOKED_AT)
    some = [row for row in range(len(examples.encoded)) if row % examples.n % every == 0]
    sums = HeadSums()
    layers = list(lenses.by_layer)
    for row in prompt_rows(lenses.model, [examples.encoded[i] for i in some], layers=layers):
        start, stop = examples.added[some[row.prompt]]
        at = torch.arange(len(examples.encoded[some[row.prompt]]))
        sums.add(row.z, (at >= start) & (at < stop))
    return sums.readout(lenses, window=config.window, stride=max(1, config.window // 4))


def _read(
    lenses: Lenses, readout: Readout, examples: Examples, progress: Progress | None
) -> list[Stretches]:
    found: dict[int, Stretches] = {}
    for row in prompt_rows(lenses.model, examples.encoded, layers=list(lenses.by_layer)):
        found[row.prompt] = _apart(readout.points(row.z), examples.added[row.prompt])
        if progress is not None:
            progress("reading prompts", len(found), len(examples.encoded))
    return [found[row] for row in range(len(examples.encoded))]


def _apart(points: Points, added: tuple[int, int]) -> Stretches:
    start, stop = torch.tensor(points.spans).T
    inside = (stop.clamp_max(added[1]) - start.clamp_min(added[0])).clamp_min(0) / (stop - start)
    features = points.features.float()
    # Stretches that are partly a request teach nothing of either.
    return Stretches(features[inside == 0], features[inside >= MOSTLY])


def _discriminant(read: Sequence[Stretches]) -> Discriminant:
    request = torch.cat([each.request for each in read])
    if not len(request):
        raise UsageError(
            "no request fills a stretch: the window is too wide", hint="give a smaller window"
        )
    return Discriminant.fit(torch.cat([each.ordinary for each in read]), request)


def _crossed(read: Sequence[Stretches], n: int) -> Float[Tensor, " prompt"]:
    """The score of each ordinary prompt by a fit without it and its spliced twin."""
    scores = torch.zeros(n, dtype=torch.double)
    for fold in range(FOLDS):
        fitted = _discriminant([each for row, each in enumerate(read) if row % n % FOLDS != fold])
        for row in range(fold, n, FOLDS):
            scores[row] = fitted.log_odds(read[row].ordinary).max()
    return scores
