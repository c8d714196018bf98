"""Causal basis extraction: the directions of a head with most influence on its lens and model.

Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), section 4.1: with ``r(z, v)`` the state
whose component along v is set to its mean, the influence of a direction on a lens f is
``sigma(v) = E KL(f(z) || f(r(z, v)))``, and the causal basis takes, one after another, the
direction of the largest influence that is orthogonal to all before it. A faithful lens ranks its
directions as the model does (fidelity, property 1).

That alone proves little: the influence of a direction on anything grows with the variance of the
activation along it, which needs no lens. `Influence.variances` is what variance alone reaches, and
`Influence.partials` what the lens knows beyond it.

We differ: the state is ``z`` of one head, so there are d_head directions; all heads of a
layer are extracted together, each with its own directions, by one L-BFGS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.interp.lenses.lens import Lens
from saccade.interp.studies.fidelity.geometry import (
    Estimate,
    divergence,
    estimate,
    partial_spearman,
    resampled,
    spearman,
)
from saccade.interp.studies.fidelity.stage import Stage

# The paper allows 100 steps of L-BFGS from the singular vectors of the unembedding. The start below
# uses where z varies and what the lens is sensitive to; a test compares the result of six steps
# with a thousand random directions.
STEPS = 6


class Influence(NamedTuple):
    """The effect of setting each direction to its mean, by window of text, in nats."""

    lens: Float[Tensor, "window head direction"]
    model: Float[Tensor, "window head direction"]
    variance: Float[Tensor, "window head direction"]
    """Of the activation along each direction: the control, without any lens."""

    def correlations(self) -> Float[Tensor, "bootstrap head"]:
        """Spearman's rank correlation of lens and model over the directions, windows resampled."""
        lens, model, _ = self._resampled()
        return spearman(lens, model)

    def variances(self) -> Float[Tensor, "bootstrap head"]:
        """The same of the variance with the model."""
        _, model, variance = self._resampled()
        return spearman(variance, model)

    def partials(self) -> Float[Tensor, "bootstrap head"]:
        """That of lens and model with the variance partialled out."""
        return partial_spearman(*self._resampled())

    def _resampled(self) -> list[Float[Tensor, "bootstrap head direction"]]:
        counts = resampled(len(self.lens))
        return [torch.einsum("bw,whk->bhk", counts, each.cpu()) for each in self]

    def correlation(self, place: int) -> Estimate:
        """The rank correlation of one head, with its interval."""
        return estimate(self.correlations()[:, place])


def without(
    z: Float[Tensor, "*batch head d_head"],
    direction: Float[Tensor, "head d_head"],
    mean: Float[Tensor, "head d_head"],
) -> Float[Tensor, "*batch head d_head"]:
    """``r(z, v) = z + v v^T (mean - z)``: mean ablation of one unit direction per head.

    >>> z, mean = torch.tensor([[[3.0, 5.0]]]), torch.tensor([[1.0, 1.0]])
    >>> without(z, torch.tensor([[0.0, 1.0]]), mean)
    tensor([[[3., 1.]]])
    """
    along = ((mean - z) * direction).sum(-1, keepdim=True)
    return z + along * direction


def causal_basis(
    stage: Stage,
    lens: Lens,
    *,
    directions: int | None = None,
    tick: Callable[[], None] | None = None,
) -> Float[Tensor, "head direction d_head"]:
    """The causal basis of each head of a layer, the direction of most influence first.

    Args:
        directions: how many; all d_head by default.
        tick: called after each.
    """
    z, mean = stage.z.float(), stage.mean
    n_heads, d_head = mean.shape
    with torch.no_grad():
        before = stage.lens_logits(lens, z)
        surrogate = _surrogate(stage, lens)
    basis = z.new_zeros(n_heads, 0, d_head)
    for _ in range(min(directions or d_head, d_head)):
        raw = _start(surrogate, basis).requires_grad_()
        optimiser = torch.optim.LBFGS([raw], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimiser.zero_grad()  # noqa: B023  (called within this round only)
            v = _unit_orthogonal(raw, basis)  # noqa: B023
            after = stage.lens_logits(lens, without(z, v, mean))
            influence = divergence(before, after, stage.tokens.log_weight).mean(0)  # [head]
            # The logarithm gives heads of all strengths the same weight in the shared line search.
            total = -influence.clamp_min(1e-12).log().sum()
            total.backward()
            return total

        optimiser.step(loss)
        basis = torch.cat([basis, _unit_orthogonal(raw.detach(), basis)[:, None]], dim=1)
        if tick is not None:
            tick()
    influence = lens_influence(stage, lens, basis).mean(0)
    order = influence.argsort(-1, descending=True)
    return basis.gather(1, order[..., None].expand_as(basis))


def random_basis(
    stage: Stage, *, directions: int, seed: int = 0
) -> Float[Tensor, "head direction d_head"]:
    """Random orthonormal directions for each head: the control."""
    n_heads, d_head = stage.mean.shape
    noise = torch.randn(n_heads, d_head, d_head, generator=torch.Generator().manual_seed(seed))
    rows = torch.linalg.qr(noise).Q.transpose(1, 2)[:, :directions]
    return rows.to(stage.mean)


def principal_basis(stage: Stage) -> Float[Tensor, "head d_head d_head"]:
    """Principal directions of each head's activations, largest first: the same for all lenses."""
    centred = (stage.z.float() - stage.mean).transpose(0, 1)  # [head, n, d_head]
    _, vectors = torch.linalg.eigh(centred.transpose(1, 2) @ centred)
    return vectors.flip(-1).transpose(1, 2)


@torch.no_grad()
def lens_influence(
    stage: Stage, lens: Lens, basis: Float[Tensor, "head direction d_head"]
) -> Float[Tensor, "window head direction"]:
    """KL(lens || lens with a direction set to its mean), for each direction."""
    z = stage.z.float()
    before = stage.lens_logits(lens, z)
    moved = [
        divergence(
            before, stage.lens_logits(lens, without(z, v, stage.mean)), stage.tokens.log_weight
        )
        for v in basis.unbind(1)
    ]
    return stage.by_window(torch.stack(moved, -1))


def direction_variance(
    stage: Stage, basis: Float[Tensor, "head direction d_head"]
) -> Float[Tensor, "window head direction"]:
    """The variance of the activation along each direction, about its mean over all windows."""
    along = torch.einsum("nhi,hki->nhk", stage.z.float() - stage.mean, basis)
    return stage.by_window(along.square())


@torch.no_grad()
def model_influence(
    stage: Stage,
    basis: Float[Tensor, "head direction d_head"],
    *,
    heads: Sequence[int] | None = None,
    tick: Callable[[], None] | None = None,
) -> Float[Tensor, "window chosen direction"]:
    """KL(model || model with a direction set to its mean), for each direction of each head.

    One run of the later layers for each direction of each head; a run fills the batch with text.
    """
    z = stage.rerun.z.float()
    rows = []
    for head in range(len(basis)) if heads is None else heads:
        moved = []
        for v in basis[head]:
            touched = without(z[:, :, [head]], v[None], stage.mean[[head]])[:, :, 0]
            after = stage.answer(head, touched)
            moved.append(divergence(stage.before, after, stage.tokens.log_weight))
            if tick is not None:
                tick()
        rows.append(stage.by_window(torch.stack(moved, -1)))
    return torch.stack(rows, 1)


def _surrogate(stage: Stage, lens: Lens) -> Float[Tensor, "head d_head d_head"]:
    """The start: directions in which z varies and to which the linearised lens is sensitive."""
    z, d_head = stage.z.float(), stage.mean.shape[1]
    centred = (z - stage.mean).transpose(0, 1)
    varies = centred.transpose(1, 2) @ centred
    # Each position perturbs one of the d_head units; every unit gets several positions.
    unit = torch.arange(len(z), device=z.device) % d_head
    tried = z + torch.eye(d_head, device=z.device)[unit, None]
    moved = stage.lens_logits(lens, tried) - stage.lens_logits(lens, z)  # [n, head, token]
    slope = moved.new_zeros(d_head, *moved.shape[1:]).index_add_(0, unit, moved).transpose(0, 1)
    p = (stage.before + stage.tokens.log_weight).softmax(-1).mean(0)  # [token]
    centre = slope - (slope * p).sum(-1, keepdim=True)
    sensitive = (centre * p) @ centre.transpose(1, 2)

    def shares(each: Tensor) -> Tensor:
        return each / each.diagonal(dim1=1, dim2=2).sum(-1)[:, None, None].clamp_min(1e-30)

    # A small multiple of the identity, so that directions without influence are still defined.
    return shares(varies) + shares(sensitive) + 1e-6 * torch.eye(d_head).to(z)


def _start(surrogate: Tensor, basis: Tensor) -> Tensor:
    """The leading direction of the surrogate that is orthogonal to the basis."""
    rest = torch.eye(surrogate.shape[-1]).to(surrogate) - basis.transpose(1, 2) @ basis
    _, vectors = torch.linalg.eigh(rest @ surrogate @ rest)
    return vectors[..., -1].clone()


def _unit_orthogonal(raw: Tensor, basis: Tensor) -> Tensor:
    """The part orthogonal to the basis, of length 1."""
    for _ in range(2):  # the second pass removes the rounding error
        raw = raw - torch.einsum("hk,hkd->hd", torch.einsum("hd,hkd->hk", raw, basis), basis)
    return raw / raw.norm(dim=-1, keepdim=True).clamp_min(1e-12)
