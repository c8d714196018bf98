"""From least squares to minimal KL, using only the sums of the one pass and a few z.

KL(model || lens) depends on the model's predictions only through ``u = W_U^T p``, the expected
token vector, up to a constant: for a lens ``softmax(W_U (A z + b) + c)`` with expected token vector
``v(z)``,

    d KL / d A = mean of z (v(z) - u)^T,    d KL / d b = mean of v(z) - u.

The mean of ``z u^T`` is among the sums of the pass (`Statistics`, "zu"), taken over the whole text.
The mean of ``z v(z)^T`` needs only z, at any few hundred positions: the model's predictions there
do not matter. So at those positions ``u`` is replaced by its linear prediction from z, whose
moments with z are those of the whole text, and Newton steps minimise the KL. The steps are damped
in directions of the final state that affect the tokens little: the possible gain there is smaller
than the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.interp.lenses.held_out import SampledTokens, sample_tokens
from saccade.interp.lenses.statistics import (
    TOKENS_AT_ONCE,
    Covariances,
    Statistics,
    damped_inverse,
    ridged,
)

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.head_lens import HeadLens

# Full steps would oscillate in the end: z has heavier tails than the Fisher metric assumes.
RATES = (1.0, 0.7, 0.5)
N_TOKENS = 1024
# Relative to the mean variance of z.
RIDGE = 0.1
# A direction with less variance than this (relative to the mean) counts as constant.
SILENT = 1e-3
# Relative to the largest eigenvalue of the Fisher information. On the default model 0.2 gains a
# little less in three steps, and 0.03 fits the noise of the sums.
DAMPING = 0.1


@dataclass(frozen=True)
class Matching:
    """The quantities that the steps of all heads share."""

    tokens: SampledTokens
    vectors: Float[Tensor, "token d_model"]
    """The unembedding of the tokens."""
    expected: Float[Tensor, " d_model"]
    """The mean of u, over the same tokens: the mean prediction."""
    inverse: Float[Tensor, "d_model d_model"]
    """Of the damped Fisher information of the mean prediction."""

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        baseline: Float[Tensor, " d_vocab"],
        *,
        fisher: Float[Tensor, "d_model d_model"] | None = None,
        seed: int = 0,
    ) -> Matching:
        """Choose the tokens (deterministic for a given seed) and invert the Fisher information.

        Args:
            fisher: the Fisher information of the baseline lens, if already known.
        """
        weight = model.unembedding.weight
        p = baseline.exp().to(weight.device)
        tokens = sample_tokens(
            p,
            p,
            n_tokens=min(N_TOKENS, len(p)),
            generator=torch.Generator().manual_seed(seed),
        )
        fisher = fisher_information(weight, p) if fisher is None else fisher
        vectors = weight[tokens.ids].float()
        baseline = baseline.to(weight.device)[tokens.ids] + tokens.log_weight
        return cls(
            tokens=tokens,
            vectors=vectors,
            expected=baseline.softmax(-1) @ vectors,
            inverse=damped_inverse(fisher.double(), DAMPING).float(),
        )


def fisher_information(
    weight: Float[Tensor, "d_vocab d_model"], p: Float[Tensor, " d_vocab"]
) -> Float[Tensor, "d_model d_model"]:
    """The Fisher information of a prediction: its sensitivity to a change of the final state.

    Computed in blocks of tokens: the weighted unembedding would be a second copy of a large matrix.
    """
    p = p.to(weight.device)
    mean = p.new_zeros(weight.shape[1])
    second = p.new_zeros(weight.shape[1], weight.shape[1])
    for some, chance in zip(weight.split(TOKENS_AT_ONCE), p.split(TOKENS_AT_ONCE), strict=True):
        rows = some.to(p.dtype)
        mean += chance @ rows
        second.addmm_(rows.T * chance, rows)
    return second - torch.outer(mean, mean)


def match_moments(
    lens: HeadLens,
    statistics: Statistics,
    layer: int,
    z: Float[Tensor, "n head d_head"],
    matching: Matching,
) -> None:
    """Take the steps for all heads of a layer, in place.

    Args:
        z: the activations of the heads at some positions, of any text like that of the statistics.
    """
    device = lens.weight.device
    mean, zz, _, zu = Covariances.of(statistics, layer)
    inverse = torch.linalg.inv(ridged(zz, RIDGE))
    centred = _recoloured(z.double().cpu(), zz).float().to(device)  # [head, n, d_head]
    u = matching.expected + centred @ (inverse @ zu).float().to(device)  # [head, n, d_model]
    inverse, mean = inverse.float().to(device), mean.float().to(device)
    weight = lens.weight.detach().clone()
    bias = lens.bias.detach() + torch.einsum("hi,hid->hd", mean, weight)
    base = lens.token_bias[:, matching.tokens.ids] + matching.tokens.log_weight  # [head, token]
    for rate in RATES:
        by_token = (weight.flatten(0, 1) @ matching.vectors.T).unflatten(0, weight.shape[:2])
        baseline = base + bias @ matching.vectors.T  # [head, token]
        lens_p = torch.baddbmm(baseline[:, None], centred, by_token).softmax(-1)  # [head, n, token]
        # Multiply by the vectors last: once per head and feature instead of once per position.
        product = (centred.transpose(1, 2) @ lens_p).flatten(0, 1) @ matching.vectors
        surplus = product.view_as(weight) - centred.transpose(1, 2) @ u
        weight -= rate * inverse @ (surplus / len(z)) @ matching.inverse
        too_much = lens_p.mean(1) @ matching.vectors - u.mean(1)  # [head, d_model]
        bias -= rate * too_much @ matching.inverse
    lens.weight.data.copy_(weight)
    lens.bias.data.copy_(bias - torch.einsum("hi,hid->hd", mean, weight))


def _recoloured(
    z: Float[Tensor, "n head d_head"], zz: Float[Tensor, "head d_head d_head"]
) -> Float[Tensor, "head n d_head"]:
    """Some z, shifted to mean zero and scaled to the covariance ``zz`` of the whole text.

    A few positions, all from its end, have other moments, and the steps would match those instead.
    """
    centred = (z - z.mean(0)).transpose(0, 1)
    whiten = _power(centred.transpose(1, 2) @ centred / len(z), -0.5)
    return centred @ whiten @ _power(zz, 0.5)


def _power(
    zz: Float[Tensor, "head d_head d_head"], exponent: float
) -> Float[Tensor, "head d_head d_head"]:
    """A power of covariances. The symmetric one, which changes z least."""
    values, vectors = torch.linalg.eigh(ridged(zz, SILENT))
    # Rounding can make the eigenvalue of a constant direction slightly negative.
    values = values.clamp_min(torch.finfo(torch.float32).tiny ** 0.5)
    return (vectors * values[:, None] ** exponent) @ vectors.transpose(1, 2)
