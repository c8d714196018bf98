"""Fit a guard on ordinary prompts, and on copies with an everyday request inserted."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import UsageError
from saccade.interp.heads.prompt_batches import encode_prompts, shallow_rows
from saccade.interp.studies.guard.features import (
    Discriminant,
    Readout,
    mean_activations,
    middle_layers,
    plain_readout,
)
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
FEWEST = 20  # ordinary prompts: fewer cannot set a threshold
N_FOR_MEANS = 128  # prompts from which usual activations are computed; they are run twice
FOLDS = 4  # an ordinary prompt is scored by a fit without its fold


@dataclass(frozen=True, kw_only=True)
class GuardConfig:
    """Options of a guard."""

    window: int = 9
    """Tokens per span; less than a sentence."""

    false_alarms: float = 0.03
    """Share of ordinary prompts that may be reported."""

    seed: int = 0
    """Seed of the requests and of where they are inserted."""


def fit_guard(
    lenses: Lenses,
    prompts: Sequence[str],
    *,
    injected: Sequence[str] | None = None,
    config: GuardConfig | None = None,
    source: str = "",
    progress: Progress | None = None,
) -> Guard:
    """Fit a guard on ordinary prompts and on injected ones.

    Args:
        injected: prompts with an injection; by default copies of the ordinary prompts with an
            everyday request inserted, so that no attack is needed.
        source: where the prompts come from; stored with the guard.

    Raises:
        UsageError: too few prompts, or an invalid option.
    """
    config = config or GuardConfig()
    _check(lenses, prompts, config)
    attacked = splice_requests(prompts, seed=config.seed) if injected is None else injected
    if not attacked:
        raise UsageError(
            "there are no injected prompts to fit a guard on",
            hint="give some, or none at all: a request is then inserted into each ordinary prompt",
        )
    read = read_examples(lenses, prompts, attacked, config=config, progress=progress)
    return guard_of(lenses, read, config=config, source=source)


class ReadExamples(NamedTuple):
    """The features of prompts to fit a guard on; several sets can be joined."""

    readout: Readout
    ordinary: Sequence[Float[Tensor, "_ feature"]]
    """The spans of each ordinary prompt."""
    injected: Sequence[Float[Tensor, "_ feature"]]

    def joined(self, other: ReadExamples) -> ReadExamples:
        """With those of another set, read by the same readout."""
        return ReadExamples(
            self.readout, [*self.ordinary, *other.ordinary], [*self.injected, *other.injected]
        )


def read_examples(
    lenses: Lenses,
    ordinary: Sequence[str],
    injected: Sequence[str],
    *,
    config: GuardConfig,
    readout: Readout | None = None,
    progress: Progress | None = None,
) -> ReadExamples:
    """Run the model on prompts to fit a guard on.

    Args:
        readout: that of another set, so that both can be joined; by default one of its own.
    """
    encoded = encode_prompts(lenses.model, [*ordinary, *injected], progress=progress)
    readout = readout or _readout(lenses, encoded[: len(ordinary)], config)
    found: dict[int, Tensor] = {}
    for row, z in shallow_rows(lenses.model, encoded, layers=list(readout.usual)):
        found[row] = readout.points(z).features.float()
        if progress is not None:
            progress("reading prompts", len(found), len(encoded))
    read = [found[row] for row in range(len(encoded))]
    return ReadExamples(readout, read[: len(ordinary)], read[len(ordinary) :])


def guard_of(lenses: Lenses, read: ReadExamples, *, config: GuardConfig, source: str = "") -> Guard:
    """Fit the discriminant and the threshold on prompts that have been read."""
    n = len(read.ordinary)
    both = [*read.ordinary, *read.injected]
    ordinary = _crossed(both, n).sort().values
    return Guard(
        lenses=lenses,
        readout=read.readout,
        discriminant=_discriminant(both, n),
        ordinary=ordinary,
        threshold=threshold_for(ordinary, config.false_alarms),
        false_alarms=config.false_alarms,
        source=source,
    )


def _check(lenses: Lenses, prompts: Sequence[str], config: GuardConfig) -> None:
    if any(each.site == "residual" for each in lenses.by_layer.values()):
        raise UsageError(
            f"a guard needs lenses of heads, got {lenses.provenance.kind} lenses",
            hint="fit lenses with `saccade lens fit --kind head`",
        )
    if len(prompts) < FEWEST:
        raise UsageError(
            f"expected at least {FEWEST} ordinary prompts, got {len(prompts)}",
            hint="a few hundred prompts of the kind you expect make a good guard",
        )
    longest = lenses.model.max_positions or 1_000_000
    if not 0 < config.false_alarms < 1 or not 1 <= config.window <= longest:
        raise UsageError(
            f"cannot fit a guard with window {config.window} and {config.false_alarms} false "
            "alarms",
            hint=f"give a window of 1 to {longest} tokens, and a share of false alarms between 0 "
            "and 1",
        )


def _readout(lenses: Lenses, plain: Sequence[Tensor], config: GuardConfig) -> Readout:
    """The usual activations of the heads, from some of the prompts."""
    some = plain[:: -(-len(plain) // N_FOR_MEANS)]
    layers = middle_layers(list(lenses.by_layer))
    usual = mean_activations(z for _, z in shallow_rows(lenses.model, some, layers=layers))
    return plain_readout(usual, window=config.window, stride=max(1, config.window // 3))


def _discriminant(read: Sequence[Tensor], n_ordinary: int) -> Discriminant:
    """``read``: the ordinary prompts, then the injected ones."""
    return Discriminant.fit(read, torch.arange(len(read)) >= n_ordinary)


def _crossed(read: Sequence[Tensor], n_ordinary: int) -> Float[Tensor, " prompt"]:
    """The score of each ordinary prompt by a fit without it and its copy with an injection.

    A copy has the number of its original, so that both are in the same fold.
    """
    scores = torch.zeros(n_ordinary, dtype=torch.double)
    number = [row if row < n_ordinary else row - n_ordinary for row in range(len(read))]
    for fold in range(FOLDS):
        kept = [row for row in range(len(read)) if number[row] % FOLDS != fold]
        n_kept = sum(row < n_ordinary for row in kept)
        fitted = _discriminant([read[row] for row in kept], n_kept)
        for row in range(fold, n_ordinary, FOLDS):
            scores[row] = fitted.log_odds(read[row]).max()
    return scores
