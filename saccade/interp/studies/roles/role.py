"""What a role of a head is: a name, a published test, and a score with an interval per head."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import TaskError, UsageError
from saccade.interp.effects.parts import HeadsValue
from saccade.interp.effects.target import LOGIT_ROWS
from saccade.interp.heads.onednn import fast_products
from saccade.interp.studies.fidelity.geometry import resampled
from saccade.store.atomic import data_dir

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

ByLayer = Mapping[int, Float[Tensor, " head"]]
Rows = Mapping[int, Float[Tensor, "row head"]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class RoleScore:
    """The score of every head for one role, by layer."""

    score: ByLayer
    low: ByLayer
    """The lower end of the 95 % interval over rows: prompts, texts or tokens."""
    high: ByLayer
    n_rows: int
    beside: Mapping[str, ByLayer] = field(default_factory=dict)
    """What else was measured in the same runs, such as the parts of a product."""
    notes: tuple[str, ...] = ()
    """What the numbers rest on: tasks left out, the source of the texts."""
    check: Mapping[str, Any] | None = None
    """A test of the heads that were found, on texts that they were not found on."""


def score_of(
    rows: Rows,
    *,
    times: Rows | None = None,
    beside: Mapping[str, Rows] | None = None,
    seed: int = 0,
    notes: tuple[str, ...] = (),
    check: Mapping[str, Any] | None = None,
) -> RoleScore:
    """The mean over rows, with a percentile bootstrap over the rows (Efron, 1979).

    All heads share the draws. One row gives no interval: it is its own.

    Args:
        times: the score is the product of two means, that of ``rows`` and that of these.
        beside: of these only the means are given.
    """
    layers = list(rows)
    every = torch.cat([rows[layer].double().cpu() for layer in layers], 1)  # [row, site]
    counts = resampled(len(every), seed=seed).double()
    means = counts @ every / len(every)  # [bootstrap, site]
    if times is not None:
        other = torch.cat([times[layer].double().cpu() for layer in layers], 1)
        means = means * (counts @ other / len(every))
    bounds = means[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.double), dim=0)
    sizes = [rows[layer].shape[1] for layer in layers]
    score, low, high = (
        dict(zip(layers, each.float().split(sizes), strict=True)) for each in (means[0], *bounds)
    )
    others = {
        name: {layer: each[layer].float().cpu().mean(0) for layer in layers}
        for name, each in (beside or {}).items()
    }
    return RoleScore(score, low, high, len(every), others, notes, check)


Measure = Callable[
    ["LanguageModel", int, "Path | None", "Progress | None"], Mapping[str, RoleScore]
]
"""Scores of one or more roles from the same runs: of a model, a seed and a folder with data."""


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role that a head can have, and how it is measured."""

    name: str
    test: str
    """The published test, with its source."""
    measure: Measure
    """Roles of one function are measured together."""
    data: str | None = None
    """The folder of the data set that its texts come from."""
    needs_data: bool = False
    """It cannot be measured without; else generated texts take its place."""
    threshold: float | None = None
    """The score from which the paper calls a head one of these, where it names one."""


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The scores of every head for some roles."""

    model: str
    seed: int
    found: Mapping[str, RoleScore]
    tests: Mapping[str, str]
    thresholds: Mapping[str, float] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Role -> why it was not measured."""

    @property
    def scores(self) -> dict[str, dict[int, Float[Tensor, " head"]]]:
        """Role -> layer -> one score per head."""
        return {role: dict(each.score) for role, each in self.found.items()}

    @property
    def low(self) -> dict[str, dict[int, Float[Tensor, " head"]]]:
        """The lower ends of the 95 % intervals."""
        return {role: dict(each.low) for role, each in self.found.items()}

    @property
    def high(self) -> dict[str, dict[int, Float[Tensor, " head"]]]:
        """The upper ends of the 95 % intervals."""
        return {role: dict(each.high) for role, each in self.found.items()}

    def test_of(self, role: str) -> str:
        """The published test of a role, with its source."""
        return self.tests[role]

    def ranked(self, role: str, n: int = 5) -> list[tuple[int, int, float]]:
        """The heads with the highest scores for a role: layer, head, score.

        Heads that the test does not apply to have no number, and come last.
        """
        every = [
            (layer, head, float(score))
            for layer, row in self.found[role].score.items()
            for head, score in enumerate(row)
        ]
        return sorted(every, key=lambda each: (each[2] != each[2], -each[2]))[:n]

    def to_dict(self) -> dict[str, Any]:
        """All scores as plain values; None where a test does not apply to a head."""
        layers = next(iter(self.found.values())).score if self.found else {}
        sites = [(layer, head) for layer, row in layers.items() for head in range(len(row))]
        heads = [
            {"layer": layer, "head": head}
            | {role: _number(each.score[layer][head]) for role, each in self.found.items()}
            for layer, head in sites
        ]
        tests = {
            role: {
                "test": self.tests[role],
                "threshold": self.thresholds.get(role),
                "n_rows": each.n_rows,
                "low": [_number(each.low[layer][head]) for layer, head in sites],
                "high": [_number(each.high[layer][head]) for layer, head in sites],
                "beside": {
                    name: [_number(rows[layer][head]) for layer, head in sites]
                    for name, rows in each.beside.items()
                },
                "notes": list(each.notes),
                "check": each.check,
            }
            for role, each in self.found.items()
        }
        return {
            "model": self.model,
            "seed": self.seed,
            "heads": heads,
            "tests": tests,
            "left_out": dict(self.left_out),
        }

    def to_json(self) -> str:
        """One JSON object; the lists of a role are in the order of ``heads``."""
        return json.dumps(self.to_dict())


def _number(value: Tensor) -> float | None:
    return float(value) if bool(value.isfinite()) else None


# Data sets.


def role_data(folder: str, data: str | Path | None = None) -> Path | None:
    """The folder of a data set: in ``data``, or where ``SACCADE_DATA`` says; None if absent."""
    places = [Path(data).expanduser()] if data is not None else []
    if (named := data_dir()) is not None:
        places.append(named)
    for place in places:
        for found in (place / folder, place / "judging" / folder):
            if found.is_dir():
                return found
    return None


def read_data(path: Path) -> Any:
    """The contents of a JSON file of a data set."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(
            f"cannot read {path}: {error}", hint="fetch the data set again, and check the file"
        ) from error


# What the measurements by effect share.


def head_changes(
    model: LanguageModel, values: Mapping[int, Float[Tensor, "*batch head d_head"]]
) -> list[HeadsValue]:
    """A change for every head of a model, in order of depth: its activation becomes this value."""
    return [
        HeadsValue(at.index, (head,), values[at.index][..., head : head + 1, :])
        for at in model.layers
        for head in range(at.n_heads)
    ]


def split_heads(
    model: LanguageModel, rows: Float[Tensor, "row site"]
) -> dict[int, Float[Tensor, "row head"]]:
    """Columns in the order of `head_changes`, by layer."""
    sizes = [at.n_heads for at in model.layers]
    return dict(zip((at.index for at in model.layers), rows.split(sizes, 1), strict=True))


class Predictions(NamedTuple):
    """Predictions at some tokens, under changes and without."""

    kl: Float[Tensor, " change"]
    """KL(without change || with it), in nats."""
    logits: Float[Tensor, "change token"]
    log_p: Float[Tensor, "change token"]
    plain_logits: Float[Tensor, " token"]
    plain_log_p: Float[Tensor, " token"]


@torch.no_grad()
def predictions(
    model: LanguageModel,
    plain: Float[Tensor, " d_model"],
    states: Float[Tensor, "change d_model"],
    tokens: Sequence[int],
) -> Predictions:
    """Predictions from final states: of an unchanged run, and of changed ones."""
    if not tokens:
        raise UsageError("there is no token to look at", hint="give at least one")
    with fast_products():
        own = model.unembedding.logits(plain).float()
        p, norm = own.softmax(-1), own.logsumexp(-1)
        kl, logits, log_p = [], [], []
        for some in states.split(LOGIT_ROWS):
            changed = model.unembedding.logits(some).float()
            chosen = changed[:, list(tokens)]
            moved = changed.sub_(own)
            # log of the sum of p exp(moved): written so, a small change keeps its digits.
            shift = torch.log1p(moved.expm1() @ p)
            kl.append((shift - moved @ p).clamp_min(0.0))
            logits.append(chosen)
            log_p.append(chosen - (norm + shift)[:, None])
    at = own[list(tokens)]
    return Predictions(torch.cat(kl), torch.cat(logits), torch.cat(log_p), at, at - norm)
