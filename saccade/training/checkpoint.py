"""Where a killed training goes on: weights, optimiser, generators and counters in one folder.

Only safetensors and JSON: an optimiser's state is a table of tensors, one row a weight, and so is
the state of the random generators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from saccade.errors import TrainingError
from saccade.store import (
    read_folder,
    settled_folder,
    with_digest,
    without_digest,
    write_folder,
)
from saccade.training.state import TrainState

KIND = "saccade checkpoint"
PARTS = ("weights", "optimiser", "random", "carried", "window")


class Checkpoint(NamedTuple):
    """All that a training needs to go on as if nothing had happened."""

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
    """Write a checkpoint over the one that is there, as a whole."""
    tensors = {f"{part}.safetensors": getattr(checkpoint, part) for part in PARTS}
    state = with_digest(checkpoint.state.to_json())
    write_folder(folder, {"kind": KIND, "state": state}, tensors)


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The checkpoint in a folder; None when there has not been one yet."""
    if not settled_folder(folder).is_dir():
        return None
    names = [f"{part}.safetensors" for part in PARTS]
    held, where = read_folder(folder, needs=names), folder / "manifest.json"
    if held.manifest.get("kind") != KIND or not isinstance(held.manifest.get("state"), dict):
        raise TrainingError(
            f"{where} is damaged: expected a {KIND} with its state",
            hint="copy the run again, or begin again in another folder",
        )
    stored = without_digest(held.manifest["state"], where=where)
    if unknown := stored.keys() - {each.name for each in fields(TrainState)}:
        raise TrainingError(
            f"{folder} was written by another version of saccade: it has {', '.join(unknown)}",
            hint="take it up with that version, or begin again in another folder",
        )
    state = TrainState.from_json(stored, where=where)
    return Checkpoint(state, *(held.tensors[name] for name in names))


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], *, source: Path) -> None:
    """Put weights into a model, or say how they do not fit."""
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

    Its settings are not among them: they follow from the training's.
    """
    return {
        f"{index}.{name}": value
        for index, values in optimiser.state_dict()["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)  # sgd without momentum remembers None
    }


def load_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimiser_tensors` gave.

    In memory it must lie as its weight does: fused optimisers go over both as they lie there.
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
