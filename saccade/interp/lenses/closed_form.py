"""Lenses in closed form: solved from the sums of one forward pass, without gradient steps.

Every head has four maps from z to the final state in closed form, and one correction of the token
bias. The coefficient of each is fitted on held-out text. In the notation of `Statistics` (all
covariances; S of z, C of z with f, K of z with u, p the mean predicted distribution,
G = W_U^T (diag p - p p^T) W_U its Fisher information):

- ``S^-1 C`` with a weak and with a strong ridge: least squares, the mean of f given z. The
  ratio of their coefficients chooses the ridge; the sum is the scale.
- ``S^-1 K (G + damping)^-1``: a Newton step of KL(model || lens) from the baseline lens. Least
  squares matches mean logits, but the divergence requires mean *probabilities*; this is the
  direction in which the two differ. The damping restricts it to where there is enough data.
- ``S^-1 C G (G + damping)^-1``: the part of that direction that least squares already contains.
- token bias ``-1/2 w (A S A^T) w``: if z is Gaussian, adding ``A z`` to the logit of a token
  multiplies its mean probability by the exponential of half its variance; this corrects for it.

KL(model || lens) is convex in these five coefficients, so Newton's method finds them. They are
first fitted for all heads together; then each head may deviate from the shared values, regularised
towards them. From there a few steps of `saccade.interp.lenses.moments` minimise the divergence,
using the sums and no predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.held_out import HeldOut
from saccade.interp.lenses.moments import Matching, fisher_information, match_moments
from saccade.interp.lenses.statistics import Covariances, Statistics, damped_inverse, ridged

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.gather import Fit, Gathered

# Relative to the mean variance of z.
WEAK_RIDGE, STRONG_RIDGE = 0.03, 1.0
NEWTON_RIDGE = 0.1
# Relative to the largest eigenvalue of G: directions below it have too little signal.
DAMPING = 0.05
# Number of leading directions that approximate the variance of a token's logit under the lens.
VARIANCE_RANK = 8
SHARED_STEPS, OWN_STEPS = 3, 1
# Candidate interpolation weights between the mixture (0) and the matched moments (1).
SHARES = (0.0, 0.5, 1.0)
# Positions for moment matching, per feature: 256 are enough for a head of 8 features. (On
# stories260K the mean gain is 0.477 nats instead of 0.483 with all 1,024, in half the time.)
POSITIONS_PER_FEATURE = 32
# The shared mixture of all heads is fitted on this many layers, evenly spaced.
SHARED_LAYERS = 6
# Regularisation of each head towards the shared mixture, in units of the mean curvature.
LOYALTY = 2.0
# Number of held-out positions (in random order) and tokens: enough to choose five coefficients per
# head. The polish chooses among states of 37 thousand parameters, and needs all of them.
FEW, FEW_TOKENS = 128, 1024
# The terms of these layers are cached between steps only up to this size.
TERMS_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Ingredients:
    """The components that the lenses of one layer combine."""

    mean: Float[Tensor, "head d_head"]
    """Mean of z."""
    maps: Float[Tensor, "kind head d_head d_model"]
    spread: Float[Tensor, "head rank d_model"]
    """``w . spread`` squared and summed over ``rank`` is the variance of a token's logit."""


class Curvature(NamedTuple):
    """Gradient and Hessian of the held-out divergence in the coefficients of each head."""

    gradient: Float[Tensor, "head kind"]
    hessian: Float[Tensor, "head kind kind"]


def solve_gathered(model: LanguageModel, gathered: Gathered, seed: int) -> dict[int, HeadLens]:
    """The lenses of every layer, from the sums and the sample of one pass over a text."""
    baseline, sample = baseline_lens(gathered.statistics), gathered.held_out()
    held_out = HeldOut.of(model, sample[:FEW], baseline, seed=seed, n_tokens=FEW_TOKENS)
    return solve(model, gathered.statistics, held_out, z=sample.z)


def solved_layers(fit: Fit) -> dict[int, HeadLens]:
    """The lenses of the requested layers."""
    solved = solve_gathered(fit.model, fit.gathered, fit.config.seed)
    return {layer: solved[layer] for layer in fit.layers}


@torch.no_grad()
def solve(
    model: LanguageModel,
    statistics: Statistics,
    held_out: HeldOut,
    *,
    z: Mapping[int, Float[Tensor, "n head d_head"]] | None = None,
) -> dict[int, HeadLens]:
    """The lenses of every layer, from the sums over a text and a sample of held-out positions.

    Args:
        held_out: positions of text that is not in the statistics; a hundred are enough.
        z: activations of the heads at some positions in any order, by layer; more positions
            match the moments better. Default: those of ``held_out``.
    """
    baseline = baseline_lens(statistics)
    fisher = fisher_information(model.unembedding.weight, baseline.exp())
    metric = Metric.of(fisher)
    matching = Matching.of(model, baseline, fisher=fisher)
    # One layer at a time: the components of all layers are four times as large as the lenses.
    kept = {layer: _ingredients(statistics, layer, metric) for layer in _some(statistics.layers)}
    shared, curvature = _shared_mix(kept, held_out)
    lenses = {}
    for layer in statistics.layers:
        part = kept.pop(layer, None) or _ingredients(statistics, layer, metric)
        mix = _own_mix(part, layer, held_out, shared, curvature)
        lens = _lens(model, layer, part, mix, baseline)
        del part
        start = lens.weight.detach().clone(), lens.bias.detach().clone()
        some = (z or held_out.sample.z)[layer][: POSITIONS_PER_FEATURE * lens.weight.shape[1]]
        match_moments(lens, statistics, layer, some, matching)
        _go_back(lens, *start, held_out, layer)
        lenses[layer] = lens
    return lenses


def _some(layers: Sequence[int]) -> Sequence[int]:
    """The layers on which the shared mixture is fitted."""
    return layers[:: max(1, len(layers) // SHARED_LAYERS)]


def _go_back(
    lens: HeadLens,
    weight: Float[Tensor, "head d_head d_model"],
    bias: Float[Tensor, "head d_model"],
    held_out: HeldOut,
    layer: int,
) -> None:
    """Interpolate each head back to its earlier lens where that has a lower held-out KL.

    On a long enough text nearly every head keeps its new lens; a short text is noisy.
    """
    end = lens.weight.detach().clone(), lens.bias.detach().clone()
    after = held_out.logits(lens, layer)
    lens.weight.data.copy_(weight)
    lens.bias.data.copy_(bias)
    before = held_out.logits(lens, layer)
    kl = torch.stack([held_out.kl_of(torch.lerp(before, after, share)) for share in SHARES])
    share = torch.tensor(SHARES)[kl.argmin(0)].to(weight.device)  # [head]
    lens.weight.data.lerp_(end[0], share[:, None, None])
    lens.bias.data.lerp_(end[1], share[:, None])


def baseline_lens(statistics: Statistics) -> Float[Tensor, " d_vocab"]:
    """The log of the mean predicted distribution: a lens that ignores the activation."""
    return statistics.mean("predicted.p").clamp_min(1e-12).log().float()


class Metric(NamedTuple):
    """Sensitivity of the mean prediction to the final state, and its damped inverse."""

    fisher: Float[Tensor, "d_model d_model"]
    damped: Float[Tensor, "d_model d_model"]

    @classmethod
    def of(cls, fisher: Float[Tensor, "d_model d_model"]) -> Metric:
        """In float64, on the CPU."""
        fisher = fisher.double().cpu()
        return cls(fisher, damped_inverse(fisher, DAMPING))


def _ingredients(statistics: Statistics, layer: int, metric: Metric) -> Ingredients:
    mean, zz, zf, zu = Covariances.of(statistics, layer)
    least = _least_squares(zz, zf, NEWTON_RIDGE)
    maps = torch.stack(
        [
            _least_squares(zz, zf, WEAK_RIDGE),
            _least_squares(zz, zf, STRONG_RIDGE),
            _least_squares(zz, zu, NEWTON_RIDGE) @ metric.damped,
            least @ metric.fisher @ metric.damped,
        ]
    )
    return Ingredients(mean.float(), maps.float(), _spread(zz, least).float())


def _spread(
    zz: Float[Tensor, "head d_head d_head"], weight: Float[Tensor, "head d_head d_model"]
) -> Float[Tensor, "head rank d_model"]:
    """Leading directions of the final state's variance under a map, scaled by standard deviation.

    With zz = R R^T the variance is M^T M for M = R^T weight; the eigenvectors of the small M M^T
    rotate the rows of M to its leading directions.
    """
    values, vectors = torch.linalg.eigh(zz)
    root = vectors * values.clamp_min(0).sqrt()[:, None]  # rounding can make one slightly negative
    rows = root.transpose(1, 2) @ weight
    _, turn = torch.linalg.eigh(rows @ rows.transpose(1, 2))
    return turn[..., -VARIANCE_RANK:].transpose(1, 2) @ rows


def _least_squares(
    zz: Float[Tensor, "head d_head d_head"],
    target: Float[Tensor, "head d_head d_model"],
    ridge: float,
) -> Float[Tensor, "head d_head d_model"]:
    return torch.linalg.solve(ridged(zz, ridge), target)


def _shared_mix(
    parts: dict[int, Ingredients], held_out: HeldOut
) -> tuple[Float[Tensor, " kind"], Float[Tensor, "kind kind"]]:
    """The best mixture for all heads together, and the mean curvature around it."""
    n_heads = sum(len(part.mean) for part in parts.values())
    n_kinds = len(next(iter(parts.values())).maps) + 1
    mix = torch.zeros(n_kinds)
    hessian = torch.zeros(n_kinds, n_kinds)
    n_bytes = n_kinds * n_heads * held_out.teacher.nbytes
    terms_of = cache(lambda layer: _terms(parts[layer], held_out.sample.z[layer], held_out.vectors))
    for _ in range(SHARED_STEPS):
        gradient, hessian = torch.zeros(n_kinds), torch.zeros(n_kinds, n_kinds)
        for layer, part in parts.items():
            found = _curvature(terms_of(layer), held_out, mix.expand(len(part.mean), -1))
            if n_bytes > TERMS_BYTES:
                terms_of.cache_clear()
            gradient += found.gradient.sum(0) / n_heads
            hessian += found.hessian.sum(0) / n_heads
        mix = mix - _newton_step(hessian, gradient)
    return mix, hessian


def _own_mix(
    part: Ingredients, layer: int, held_out: HeldOut, shared: Tensor, curvature: Tensor
) -> Float[Tensor, "head kind"]:
    """The mixture of each head of a layer, regularised to the shared one by the mean curvature."""
    terms = _terms(part, held_out.sample.z[layer], held_out.vectors)
    mix = shared.expand(len(part.mean), -1)
    loyalty = LOYALTY * curvature
    for _ in range(OWN_STEPS):
        found = _curvature(terms, held_out, mix)
        pull = (mix - shared) @ loyalty
        mix = mix - _newton_step(found.hessian + loyalty, found.gradient + pull)
    return mix


def _newton_step(hessian: Tensor, gradient: Tensor) -> Tensor:
    scale = hessian.diagonal(dim1=-2, dim2=-1).clamp_min(1e-12)
    return torch.linalg.solve(hessian + 1e-3 * torch.diag_embed(scale), gradient)


def _terms(
    part: Ingredients, z: Float[Tensor, "n head d_head"], vectors: Float[Tensor, "token d_model"]
) -> Float[Tensor, "head kind n token"]:
    """The contribution to the token logits of each component with coefficient 1."""
    kinds, heads, d_head, d_model = part.maps.shape
    device = vectors.device
    by_token = part.maps.transpose(0, 1).reshape(-1, d_model).to(device) @ vectors.T
    centred = (z.float() - part.mean.to(z.device)).transpose(0, 1).to(device)  # [head, n, d_head]
    variance = (part.spread.to(device) @ vectors.T).square().sum(1)  # [head, token]
    terms = vectors.new_empty(heads, kinds + 1, len(z), len(vectors))
    torch.matmul(centred[:, None], by_token.view(heads, kinds, d_head, -1), out=terms[:, :-1])
    terms[:, -1] = -0.5 * variance[:, None]
    return terms


def _curvature(terms: Tensor, held_out: HeldOut, mix: Tensor) -> Curvature:
    """Derivatives of KL(model || lens), averaged over positions, in the coefficients."""
    n = terms.shape[2]
    flat = terms.flatten(2)  # [head, kind, n token]
    logits = (mix.to(flat)[:, None] @ flat).view(len(terms), *terms.shape[2:])
    lens = logits.add_(held_out.baseline + held_out.tokens.log_weight).softmax(
        -1
    )  # [head, n, token]
    weighted = terms * lens[:, None]
    expected = weighted.sum(-1)  # [head, kind, n]
    observed = flat @ held_out.teacher.flatten() / n
    second = weighted.flatten(2) @ flat.transpose(1, 2) / n
    between = expected @ expected.transpose(1, 2) / n
    return Curvature((expected.mean(-1) - observed).cpu(), (second - between).cpu())


def _lens(
    model: LanguageModel, layer: int, part: Ingredients, mix: Tensor, baseline: Tensor
) -> HeadLens:
    lens = HeadLens.start(model, layer)
    device = lens.weight.device
    weight = torch.einsum("hk,khid->hid", mix[:, :-1], part.maps).to(device)
    variance = token_variance(model, part.spread)
    lens.weight.data.copy_(weight)
    lens.bias.data.copy_(-torch.einsum("hi,hid->hd", part.mean.to(device), weight))
    lens.token_bias.data.copy_(baseline.to(device) - 0.5 * mix[:, -1:].to(device) * variance)
    return lens.requires_grad_(False)


def token_variance(
    model: LanguageModel, spread: Float[Tensor, "head rank d_model"]
) -> Float[Tensor, "head d_vocab"]:
    """The variance of every token's logit under the lens of each head."""
    weight = model.unembedding.weight
    projected = spread.flatten(0, 1).to(weight) @ weight.T  # [head rank, d_vocab]
    return projected.float().square_().unflatten(0, spread.shape[:2]).sum(1)
