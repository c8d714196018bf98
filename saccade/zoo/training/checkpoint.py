"""Checkpoints: weights, optimiser, random generators and counters in one folder.

Only safetensors and JSON: an optimiser's state is a table of tensors, one row a weight, and so is
the state of the random generators.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.optim import Optimizer

from saccade.errors import StoreError, TrainingError
from saccade.store.atomic import settled_folder
from saccade.store.folder import load_tensors, read_folder, save_tensors, write_folder
from saccade.store.schema import conform, with_digest, without_digest

# The state of all random generators, as tensors.

# Distance of the seeds of processes, so that neighbours do not share a seed.
STRIDE = 1_000_003


def seed_all(seed: int, *, rank: int = 0) -> None:
    """Seed torch, numpy and Python, differently in every process."""
    mixed = seed + STRIDE * rank
    torch.manual_seed(mixed)  # every GPU's generator as well
    np.random.seed(mixed % 2**32)  # noqa: NPY002  the global one is what other libraries draw from
    random.seed(mixed)


def random_state() -> dict[str, Tensor]:
    """The state of all generators.

    >>> before = random_state()
    >>> first = torch.rand(())
    >>> set_random_state(before)
    >>> bool(first == torch.rand(()))
    True
    """
    _, words, gauss = random.getstate()
    _, key, place, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        **{f"cuda.{i}": state for i, state in enumerate(_cuda_states())},
        "python": torch.tensor(words),
        # NaN: no cached second number of a normal pair.
        "python_gauss": torch.tensor(float("nan") if gauss is None else gauss, dtype=torch.float64),
        "numpy": torch.tensor([*(int(word) for word in key), place, has_gauss]),
        "numpy_gauss": torch.tensor(cached, dtype=torch.float64),
    }


def set_random_state(state: Mapping[str, Tensor]) -> None:
    """Restore the state of all generators."""
    torch.set_rng_state(state["torch"])
    for device, _ in enumerate(_cuda_states()):
        if f"cuda.{device}" in state:  # a run may be resumed on a machine without this GPU
            torch.cuda.set_rng_state(state[f"cuda.{device}"], device)
    gauss = float(state["python_gauss"])
    words = tuple(state["python"].tolist())
    random.setstate((3, words, None if math.isnan(gauss) else gauss))
    *key, place, has_gauss = state["numpy"].tolist()
    numbers = ("MT19937", np.array(key, np.uint32), place, has_gauss, float(state["numpy_gauss"]))
    np.random.set_state(numbers)  # noqa: NPY002


@contextmanager
def own_randomness(seed: int) -> Iterator[None]:
    """Use this seed inside the block; restore all generators afterwards."""
    before = random_state()
    seed_all(seed)
    try:
        yield
    finally:
        set_random_state(before)


def _cuda_states() -> list[Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []


# Counters of the loop.

MOST = 10**15
Count = Annotated[int, Ge(0), Le(MOST)]


@dataclass
class TrainState:
    """The values of a checkpoint in addition to the tensors."""

    step: Count = 0
    epoch: Count = 0
    """How many epochs are complete."""
    batch: Count = 0
    """How many batches of this epoch are done."""
    epoch_length: Count = 0
    """Number of batches in the first epoch; 0 while unknown."""
    stage: Count = 0
    """Stage of the curriculum."""
    seconds: Annotated[float, Ge(0)] = 0.0
    """Seconds spent so far, including those before a resume."""
    units: Count = 0
    """Tokens, images, ... processed so far."""
    best: dict[str, float] = field(default_factory=dict)
    """The scores of the best validation."""
    best_step: Count = 0
    stale: Count = 0
    """Validations since the best one."""
    halvings: Count = 0
    stage_scores: list[dict[str, float]] = field(default_factory=list)
    """All validations of this stage of the curriculum."""
    validated: Annotated[int, Ge(-1), Le(MOST)] = -1
    """The step of the latest validation."""
    first_loss: float | None = None
    """Loss of the first step, of an untrained model."""
    n_high: Count = 0
    """Consecutive steps whose loss was far above the first, up to the last line of the log."""
    high_loss: float = 0.0
    """The latest of these losses."""
    is_done: bool = False
    """The scores are good enough to end."""

    def to_json(self) -> dict[str, Any]:
        """The JSON of a checkpoint."""
        scores = [written_scores(each) for each in self.stage_scores]
        return {**asdict(self), "best": written_scores(self.best), "stage_scores": scores}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], *, where: object) -> TrainState:
        """Restored from `to_json`, checked; earlier versions have no counts of high losses."""
        names = {each.name for each in fields(cls)} - {"first_loss", "n_high", "high_loss"}
        if missing := sorted(names - stored.keys()):
            raise StoreError(
                f"{where} is damaged: the state has no {', '.join(missing)}",
                hint="copy the run again, or start again in another folder",
            )
        held = dict(stored)
        held["best"] = read_scores(held.get("best", {}))
        scores = held.get("stage_scores", [])
        if isinstance(scores, list):
            held["stage_scores"] = [read_scores(each) for each in scores]
        return conform(cls, held, where=where)


def written_scores(scores: Mapping[str, float]) -> dict[str, float | str]:
    """Scores as JSON; those other than the watched one may be infinite or NaN.

    >>> written_scores({"nll": 0.5, "perplexity": float("inf")})
    {'nll': 0.5, 'perplexity': 'inf'}
    """
    return {name: value if math.isfinite(value) else str(value) for name, value in scores.items()}


def read_scores(scores: Any) -> Any:
    """The inverse of `written_scores`; anything else is unchanged, to be refused later."""
    if not isinstance(scores, Mapping):
        return scores
    odd = {"nan", "inf", "-inf"}
    return {
        name: float(value) if isinstance(value, str) and value in odd else value
        for name, value in scores.items()
    }


KIND = "saccade checkpoint"
PARTS = ("weights", "optimiser", "random", "carried", "window")


class Checkpoint(NamedTuple):
    """All that a training needs to resume exactly."""

    state: TrainState
    weights: Mapping[str, Tensor]
    optimiser: Mapping[str, Tensor]
    random: Mapping[str, Tensor]
    """Of every process: ``rank.name``."""
    carried: Mapping[str, Tensor]
    """Of every process."""
    window: Mapping[str, Tensor]
    """The steps since the last line of the log."""


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint atomically."""
    tensors = {f"{part}.safetensors": getattr(checkpoint, part) for part in PARTS}
    state = with_digest(checkpoint.state.to_json())
    write_folder(folder, {"kind": KIND, "state": state}, tensors)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None if there is none yet."""
    if not settled_folder(folder).is_dir():
        return None
    names = [f"{part}.safetensors" for part in PARTS]
    held, where = read_folder(folder, needs=names), folder / "manifest.json"
    if held.manifest.get("kind") != KIND or not isinstance(held.manifest.get("state"), dict):
        raise TrainingError(
            f"{where} is damaged: expected a {KIND} with its state",
            hint="copy the run again, or start again in another folder",
        )
    stored = without_digest(held.manifest["state"], where=where)
    if unknown := stored.keys() - {each.name for each in fields(TrainState)}:
        raise TrainingError(
            f"{folder} was written by another version of saccade: it has {', '.join(unknown)}",
            hint="resume it with that version, or start again in another folder",
        )
    state = TrainState.from_json(stored, where=where)
    return Checkpoint(state, *(held.tensors[name] for name in names))


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, source: Path) -> None:
    """Load weights into a model, or raise an error that says how they differ."""
    own = model.state_dict()
    wrong = [f"no {name}" for name in own if name not in weights]
    wrong += [f"{name} is unknown" for name in weights if name not in own]
    wrong += [
        f"{name} is {tuple(weights[name].shape)}, expected {tuple(value.shape)}"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    if wrong:
        shown = "; ".join(wrong[:3]) + (f"; and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        raise TrainingError(
            f"the weights in {source} are of another model: {shown}",
            hint="use the settings and the data they were trained with",
        )
    model.load_state_dict(dict(weights))


def optimiser_tensors(optimiser: Optimizer) -> dict[str, Tensor]:
    """An optimiser's state as named tensors: ``number of the weight . name``.

    Its settings are not included: they follow from the training settings.
    """
    return {
        f"{index}.{name}": value
        for index, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)  # the state of sgd without momentum is None
    }


def load_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the result of `optimiser_tensors`.

    It must have the memory format of its weight: fused optimisers assume that both are equal.
    """
    weights = [weight for group in optimiser.param_groups for weight in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        weight = weights[int(index)]
        if value.shape == weight.shape:
            value = torch.empty_like(weight, dtype=value.dtype).copy_(value)  # noqa: PLW2901
        state.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


# The mean of the weights of the last validations.
#
# Vaswani et al., 2017 (https://arxiv.org/abs/1706.03762), section 6.1, average the last 5 (or
# 20) checkpoints, written every ten minutes; here they are the weights at the last validations.


def keep_recent(folder: Path, weights: Mapping[str, Tensor], *, step: int, n: int) -> None:
    """Store these weights, and keep the latest ``n - 1`` earlier ones."""
    save_tensors(folder / f"{step:09d}.safetensors", weights)
    for old in _files(folder)[:-n]:
        old.unlink()


def forget_after(folder: Path, step: int) -> None:
    """Remove what a killed run stored after the step from which it resumes."""
    for file in _files(folder):
        if int(file.stem) > step:
            file.unlink()


def average_recent(folder: Path) -> dict[str, Tensor]:
    """The mean of all stored weights; integers (counters) are the latest."""
    files = _files(folder)
    latest = load_tensors(files[-1])
    sums = {name: value.double() for name, value in latest.items() if value.is_floating_point()}
    for file in files[:-1]:
        for name, value in load_tensors(file, names=sums).items():
            sums[name] += value
    means = {name: (total / len(files)).to(latest[name].dtype) for name, total in sums.items()}
    return {**latest, **means}


def _files(folder: Path) -> list[Path]:
    """Complete files, oldest first; hidden ones were left by a killed process."""
    found = folder.glob("*.safetensors") if folder.is_dir() else []
    return sorted(file for file in found if file.stem.isdecimal())
