"""What is measured at a position: the lens's logits beside the model's own prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

MEASURES = ("kl", "cross_entropy", "top1", "top10")


class Predicted(NamedTuple):
    """What the model itself says at some positions."""

    probs: Float[Tensor, "n d_vocab"]
    negentropy: Float[Tensor, " n"]
    top: Int[Tensor, " n"]
    next_ids: Int[Tensor, " n"]


@torch.no_grad()
def predict(
    model: LanguageModel,
    final: Float[Tensor, "n d_model"],
    next_ids: Int[Tensor, " n"],
    constant: Float[Tensor, " d_vocab"],
) -> tuple[Predicted, Float[Tensor, "3"]]:
    """The model's prediction, and sums of: KL of the constant lens, its surprise, the model's."""
    log_probs = model.unembedding.logits(final).float().log_softmax(-1)  # [n, d_vocab]
    probs = log_probs.exp()
    next_ids = next_ids.to(log_probs.device)
    negentropy = (probs * log_probs).sum(-1)
    always = constant.to(log_probs).log_softmax(-1)
    own = torch.stack(
        [
            (negentropy - probs @ always).double().sum(),
            -always[next_ids].double().sum(),
            -log_probs.gather(-1, next_ids[:, None]).double().sum(),
        ]
    )
    return Predicted(probs, negentropy, log_probs.argmax(-1), next_ids), own.cpu()


def score(
    logits: Float[Tensor, "n head d_vocab"], predicted: Predicted
) -> Float[Tensor, "measure head"]:
    """Sums over positions of each of `MEASURES`, for the lenses of one layer."""
    best = logits.topk(min(10, logits.shape[-1]))  # [n, head, 10]
    highest = best.values[..., :1]
    # torch's own logsumexp does the same and takes eight times as long (torch 2.13, two cores).
    total = ((logits - highest).exp_().sum(-1, keepdim=True).log_() + highest).squeeze(-1)
    # KL = sum p log p - sum p (logit - total), so that nothing as large as the logits is made.
    expected = (logits @ predicted.probs[:, :, None]).squeeze(-1)  # [n, head]
    is_models = best.indices == predicted.top[:, None, None]
    measures = (
        predicted.negentropy[:, None] - expected + total,
        total - _of_words(logits, predicted.next_ids),
        is_models[..., 0],
        is_models.any(-1),
    )
    return torch.stack([measure.double().sum(0) for measure in measures]).cpu()


def _of_words(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.gather(-1, ids[:, None, None].expand(-1, logits.shape[1], 1)).squeeze(-1)
