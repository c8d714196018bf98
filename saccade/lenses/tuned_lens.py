"""The tuned lens: the logit lens with a learnt affine translation at each layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.heads import FinalNorm, Unembedding, capture
from saccade.lenses.lens import Lens, register_lens
from saccade.lenses.residual_statistics import ResidualStatistics

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


@register_lens
class TunedLens(Lens):
    """The residual stream after a layer, translated to what it becomes at the end, then unembedded.

    Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), section 3:
    ``logits = unembed(norm(A h + b))``. As in the authors' code the difference from h is learnt,
    ``h + A h + b``, and starts at zero: the untrained lens is the logit lens.
    """

    kind = "tuned"
    site = "residual"

    def __init__(self, *, final_norm: FinalNorm, unembedding: Unembedding) -> None:
        super().__init__()
        d_model, device = unembedding.weight.shape[1], unembedding.weight.device
        # Neither is a module of this lens: they are the model's, and are not saved with it.
        self.final_norm = final_norm
        self.unembedding = unembedding
        self.translator = nn.Linear(d_model, d_model, device=device, dtype=torch.float32)
        nn.init.zeros_(self.translator.weight)
        nn.init.zeros_(self.translator.bias)

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> TunedLens:
        """The lens of a layer before any fitting: the logit lens."""
        model.layer(layer)  # refuses a layer that is not there
        return cls(final_norm=model.final_norm, unembedding=model.unembedding)

    def forward(
        self,
        held: Float[Tensor, "n head d_held"],
        *,
        words: Int[Tensor, " word"] | None = None,
    ) -> Float[Tensor, "n head word"]:
        """The model's own logits of the translated stream."""
        h = held.to(self.translator.weight)
        translated = (h + self.translator(h)).to(self.unembedding.weight.dtype)
        return self.unembedding.logits(self.final_norm.normed(translated), words=words).float()


def solve_tuned(
    model: LanguageModel, batches: Iterable[Int[Tensor, "_ pos"]], *, ridge: float = 1e-4
) -> dict[int, TunedLens]:
    """Tuned lenses of every layer in one pass: least squares on the final residual.

    The paper minimises the KL by SGD; squared error before the norm is what can be solved at once,
    and a good start for those who want to go on from there.

    Args:
        batches: token ids, a few rows at a time.
        ridge: see `ResidualStatistics.solve`.
    """
    statistics = ResidualStatistics.empty(model)
    for ids in batches:
        statistics.add(capture(model, ids, residual=True), model.is_text(ids))
    return tuned_from(model, statistics, ridge=ridge)


def tuned_from(
    model: LanguageModel, statistics: ResidualStatistics, *, ridge: float = 1e-4
) -> dict[int, TunedLens]:
    """The tuned lenses that statistics, perhaps merged from several texts, give."""
    lenses = {layer: TunedLens.start(model, layer) for layer in statistics.layers}
    for layer, (weight, bias) in statistics.solve(ridge=ridge).items():
        lenses[layer].load_state_dict({"translator.weight": weight, "translator.bias": bias})
        lenses[layer].requires_grad_(False)
    return lenses
