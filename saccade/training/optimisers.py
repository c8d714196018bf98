"""torch's optimisers, in the form in which each is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        case "muon":
            return _muon(model, groups, config)


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group, each by its own factor."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]


class Together(Optimizer):
    """Several optimisers, each over its own weights, as one: it has all groups and all states."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self._share()

    def step(self, closure: Any = None) -> Any:
        """A step of each; what is to be computed anew is computed once."""
        first, *others = self.parts
        loss = first.step(closure)
        for part in others:
            part.step()
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        super().load_state_dict(state_dict)
        self._share()

    def _share(self) -> None:
        at = 0
        for part in self.parts:
            n = len(part.param_groups)
            part.param_groups = self.param_groups[at : at + n]
            part.state = self.state
            at += n


def _muon(model: nn.Module, groups: Sequence[dict[str, Any]], config: TrainConfig) -> Optimizer:
    """Muon (https://kellerjordan.github.io/posts/muon) on matrices, Adam on all other weights.

    A matrix's step is made orthogonal: directions in which its gradient is small move as far as
    the others. Steps are as large as Adam's (https://arxiv.org/abs/2502.16982, section 2.2), so
    that both learn at one rate. Rows of an embedding are single vectors: Adam moves them.
    """
    embedded = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}

    def some(*, are_matrices: bool) -> list[dict[str, Any]]:
        chosen = [
            {
                **group,
                "params": [
                    weight
                    for weight in group["params"]
                    if (weight.dim() == 2 and id(weight) not in embedded) == are_matrices
                ],
            }
            for group in groups
        ]
        return [group for group in chosen if group["params"]]

    parts: list[Optimizer] = []
    rate = config.learning_rate
    if matrices := some(are_matrices=True):
        parts.append(torch.optim.Muon(matrices, lr=rate, adjust_lr_fn="match_rms_adamw"))
    if others := some(are_matrices=False):
        parts.append(torch.optim.AdamW(others, lr=rate, betas=config.betas, fused=True))
    return Together(parts)


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
