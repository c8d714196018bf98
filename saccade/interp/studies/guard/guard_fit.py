"""Fit a guard on ordinary prompts, and on copies with an everyday request inserted."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.heads.prompt_batches import encode_prompts, prompt_rows
from saccade.interp.studies.guard.features import Discriminant, HeadSums, Readout
from saccade.interp.studies.guard.guard import Guard, threshold_for

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses


# The training data of a guard: ordinary prompts with an ordinary request inserted.
#
# An injected prompt is a text with an instruction to the model where none belongs. A guard is
# trained on no attack: the instructions are everyday requests to an assistant ("List five facts
# about whales."), inserted between two sentences of an ordinary prompt.

DATA = "guard_requests.json"
OWN = 0.2  # share of requests that are the first sentence of another prompt: mostly its task
PLAIN = 0.08  # share of requests that are only the task, without a frame
_SENTENCE_END = re.compile(r"(?<=[.!?\"])[ \n]+")


@cache
def request_parts() -> Mapping[str, Sequence[str]]:
    """The parts of requests: frames, tasks, manners, roles."""
    whole = files("saccade.interp.studies").joinpath("data", DATA)
    return json.loads(whole.read_text(encoding="utf-8"))


def make_request(chance: random.Random) -> str:
    """A random everyday request to an assistant.

    >>> make_request(random.Random(3)).endswith((".", "?", "!"))
    True
    """
    parts = request_parts()
    do, also = chance.sample(parts["do"], 2)
    how, role = chance.choice(parts["how"]), chance.choice(parts["role"])
    frame = "{Do}." if chance.random() < PLAIN else chance.choice(parts["frames"])
    return frame.format(do=do, Do=do[0].upper() + do[1:], also=also, how=how, role=role)


def splice_requests(prompts: Sequence[str], *, seed: int = 0) -> list[str]:
    """Insert one request into each prompt, at the end of a random sentence."""
    chance = random.Random(f"requests {seed}")
    found = []
    for prompt in prompts:
        request = make_request(chance)
        if chance.random() < OWN:
            request = _SENTENCE_END.split(chance.choice(prompts).strip())[0]
        ends = [match.start() for match in _SENTENCE_END.finditer(prompt)] or [len(prompt)]
        at = chance.choice(ends)
        found.append(f"{prompt[:at]} {request}{prompt[at:]}")
    return found


Progress = Callable[[str, int, int], None]
FEWEST = 20  # ordinary prompts: fewer cannot set a threshold of one in twenty
# Number of prompts from which the directions of the heads are computed; they are run twice.
N_FOR_DIRECTIONS = 128
FOLDS = 4  # an ordinary prompt is scored by a fit without its fold


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Options of a guard."""

    window: int = 9
    """Tokens per span; less than a sentence."""

    false_alarms: float = 0.05
    """Share of ordinary prompts that may be reported."""

    seed: int = 0
    """Seed of the requests and of where they are inserted."""


def fit_guard(
    lenses: Lenses,
    prompts: Sequence[str],
    *,
    config: GuardConfig | None = None,
    source: str = "",
    progress: Progress | None = None,
) -> Guard:
    """Fit a guard on ordinary prompts and on copies with a request inserted; no attack is needed.

    Args:
        source: where the prompts come from; stored with the guard.

    Raises:
        UsageError: too few prompts, or an invalid option.
    """
    config = config or GuardConfig()
    _check(prompts, config, lenses.model.max_positions)
    plain = encode_prompts(lenses.model, prompts, progress=progress)
    attacked = splice_requests(prompts, seed=config.seed)
    spliced = encode_prompts(lenses.model, attacked, progress=progress)
    readout = _readout(lenses, plain, config)
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
            hint="a few hundred prompts of the kind you expect make a good guard",
        )
    longest = max_positions or 1_000_000
    if not 0 < config.false_alarms < 1 or not 1 <= config.window <= longest:
        raise UsageError(
            f"cannot fit a guard with window {config.window} and {config.false_alarms} false "
            "alarms",
            hint=f"give a window of 1 to {longest} tokens, and a share of false alarms between 0 "
            "and 1",
        )


def _readout(lenses: Lenses, plain: Sequence[Tensor], config: GuardConfig) -> Readout:
    """Compute the directions of every head from some of the prompts."""
    sums = HeadSums()
    some = plain[:: -(-len(plain) // N_FOR_DIRECTIONS)]
    for row in prompt_rows(lenses.model, some, layers=list(lenses.by_layer)):
        sums.add(row.z)
    return sums.readout(lenses, window=config.window, stride=max(1, config.window // 3))


def _read(
    lenses: Lenses, readout: Readout, encoded: Sequence[Tensor], progress: Progress | None
) -> list[Float[Tensor, "_ feature"]]:
    """The features of the spans of every prompt."""
    found: dict[int, Tensor] = {}
    for row in prompt_rows(lenses.model, encoded, layers=list(lenses.by_layer)):
        found[row.prompt] = readout.points(row.z).features.float()
        if progress is not None:
            progress("reading prompts", len(found), len(encoded))
    return [found[row] for row in range(len(encoded))]


def _discriminant(read: Sequence[Tensor]) -> Discriminant:
    """``read``: ordinary prompts, then as many with a request."""
    return Discriminant.fit(read, torch.arange(len(read)) >= len(read) // 2)


def _crossed(read: Sequence[Tensor]) -> Float[Tensor, " prompt"]:
    """The score of each ordinary prompt by a fit without it and its copy with a request."""
    n = len(read) // 2
    scores = torch.zeros(n, dtype=torch.double)
    for fold in range(FOLDS):
        fitted = _discriminant([each for row, each in enumerate(read) if row % n % FOLDS != fold])
        for row in range(fold, n, FOLDS):
            scores[row] = fitted.log_odds(read[row]).max()
    return scores
