"""torch's optimisers, in the form in which each is fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from saccade.errors import TrainingError
from saccade.training.config import TrainConfig


def make_optimiser(
    model: nn.Module, config: TrainConfig, *, rates: Mapping[str, float] | None = None
) -> Optimizer:
    """An optimiser over the model's trainable weights.

    Only tensors of two axes and more decay: a bias or a scale that is pulled to zero learns
    something else, not something simpler.

    Args:
        rates: factors on the learning rate for weights whose names begin so, for parts that must
            learn more slowly than the rest: ``{"localisation.": 0.1}``.

    >>> optimiser = make_optimiser(nn.Linear(3, 2), TrainConfig(weight_decay=0.1))
    >>> [(group["weight_decay"], group["factor"]) for group in optimiser.param_groups]
    [(0.1, 1.0), (0.0, 1.0)]
    """
    groups = _groups(model, config, rates or {})
    rate = config.learning_rate
    match config.optimiser:
        case "adam":
            return torch.optim.Adam(groups, lr=rate, betas=config.betas, fused=True)
        case "adamw":
            return torch.optim.AdamW(groups, lr=rate, betas=config.betas, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=rate, momentum=config.momentum, fused=True)
        case "rmsprop":  # has no fused form
            return torch.optim.RMSprop(groups, lr=rate, momentum=config.momentum, foreach=True)


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group, each by its own factor."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]


def _groups(
    model: nn.Module, config: TrainConfig, rates: Mapping[str, float]
) -> list[dict[str, Any]]:
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            factor = next((f for start, f in rates.items() if name.startswith(start)), 1.0)
            decay = config.weight_decay if weight.dim() > 1 else 0.0
            groups.setdefault((decay, factor), []).append(weight)
    if not groups:
        raise TrainingError(
            f"{type(model).__name__} has no weights that could be trained",
            hint="set epochs, steps and minutes to 0 for a system that is made by counting",
        )
    return [
        {"params": weights, "weight_decay": decay, "factor": factor}
        for (decay, factor), weights in groups.items()
    ]
