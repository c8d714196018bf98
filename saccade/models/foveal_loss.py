"""What a multi-fixation Boltzmann machine and its controller are trained towards."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from saccade.models.foveal_rbm import Fixations, FovealRbm, Visible


class FovealLoss(NamedTuple):
    """The loss, and its parts without gradient: means over images and glimpses."""

    loss: Float[Tensor, ""]
    nats: Float[Tensor, ""]
    """Of the right class."""
    divergence: Float[Tensor, ""]
    """Of the glimpses; its gradient is what counts."""
    control: Float[Tensor, ""]
    """Of the controller, in nats; log 2 is guessing."""


def foveal_loss(
    model: FovealRbm,
    fixations: Fixations,
    labels: Int[Tensor, " batch"],
    *,
    generative_weight: float,
    is_sequential: bool = True,
) -> FovealLoss:
    """The hybrid cost of the machine, and the logistic cost of its controller.

    Larochelle and Hinton, 2010, "hybrid-sequential"; the second part is not computed, its gradient
    is estimated by one step of contrastive divergence::

        sum_k [- log p(y | x_1..k) - generative_weight log p(y, x_k | x_1..k-1)]

    Where we differ: a mean over glimpses instead of a sum, which changes the learning rate alone.
    k begins at 0, without any glimpse: the controller compares the first one with that, and beside
    an answer that nobody taught every place looks good. The second part is that of one glimpse of
    each path, drawn at random, which is the same on average and less work.

    Args:
        is_sequential: If not, "hybrid": - log p(y | x_1..K) - generative_weight log p(y, x_1..K),
            and again - log p(y).
    """
    drives = model.drives(fixations)
    # Before the first glimpse all images are the same, and summing hidden units out is most work.
    blind = model.logits(drives[:1, :1]).expand(len(labels), -1, -1)
    logits = torch.cat([blind, model.logits(drives[:, 1:])], dim=1)  # [batch, 1 + glimpse, class]
    targets = labels[:, None].expand(-1, logits.shape[1])
    nats = functional.cross_entropy(logits.mT, targets, reduction="none")
    taught = (nats if is_sequential else nats[:, [0, -1]]).mean()
    visible = _visible(model, fixations, labels, drives=drives, is_sequential=is_sequential)
    divergence = contrastive_divergence(model, visible)
    control = _control(model, fixations, drives=drives, is_better=nats[:, 1:] < nats[:, :-1])
    loss = taught + generative_weight * divergence + control
    return FovealLoss(loss, taught.detach(), divergence.detach(), control.detach())


def contrastive_divergence(
    model: FovealRbm, visible: Visible, *, n_steps: int = 1
) -> Float[Tensor, ""]:
    """How much lower the free energy of what was seen is than that of what the machine makes of it.

    Hinton, 2002 (https://doi.org/10.1162/089976602760128018). Its gradient, with what is drawn held
    fixed, estimates that of - log p(visible), the better the more steps.
    """
    drawn = model.gibbs(visible, n_steps=n_steps)
    return (model.free_energy(visible) - model.free_energy(drawn)).mean()


def _visible(
    model: FovealRbm,
    fixations: Fixations,
    labels: Int[Tensor, " batch"],
    *,
    drives: Float[Tensor, "batch glimpse_and_1 d_hidden"],
    is_sequential: bool,
) -> Visible:
    """What is free: one glimpse of each path after those before it, or all glimpses."""
    gates = model.gates_at(fixations.places)
    if not is_sequential:
        return Visible(drives[:, 0], fixations.patches, gates, labels)
    rows = torch.arange(len(labels), device=labels.device)
    one = torch.randint_like(labels, gates.shape[1])
    return Visible(
        before=drives[rows, one],
        patches=fixations.patches[rows, one][:, None],
        gates=gates[rows, one][:, None],
        labels=labels,
    )


def _control(
    model: FovealRbm,
    fixations: Fixations,
    *,
    drives: Float[Tensor, "batch glimpse_and_1 d_hidden"],
    is_better: Bool[Tensor, "batch glimpse"],
) -> Float[Tensor, ""]:
    """Logistic regression: did the place that was looked at make the right class more likely?"""
    chosen = functional.one_hot(fixations.places, len(model.places)).to(drives)
    seen = chosen.cumsum(1) - chosen  # [batch, glimpse, place]: before that glimpse
    scores = (model.scores(drives[:, :-1], seen) * chosen).sum(-1)
    return functional.binary_cross_entropy_with_logits(scores, is_better.to(scores))
