"""The logit lens: what the model's own unembedding shows early. Nothing is learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor

from saccade.heads import FinalNorm, Unembedding
from saccade.lenses.lens import Lens, register_lens

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


@register_lens
class LogitLens(Lens):
    """The residual stream after a layer, read as if the model ended there.

    nostalgebraist, 2020, "interpreting GPT: the logit lens". The final norm takes its statistics
    from the stream at this layer, and scale, bias and soft-cap of the logits are the model's own,
    so after the last layer the lens is the model.
    """

    kind = "logit"
    site = "residual"

    def __init__(self, *, final_norm: FinalNorm, unembedding: Unembedding) -> None:
        super().__init__()
        # Neither is a module of this lens: they are the model's, and are not saved with it.
        self.final_norm = final_norm
        self.unembedding = unembedding

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> LogitLens:
        """The lens of a layer; all layers of a model have the same one."""
        model.layer(layer)  # refuses a layer that is not there
        return cls(final_norm=model.final_norm, unembedding=model.unembedding)

    def forward(
        self,
        held: Float[Tensor, "n head d_held"],
        *,
        words: Int[Tensor, " word"] | None = None,
    ) -> Float[Tensor, "n head word"]:
        """The model's own logits, were this the last layer."""
        return self.unembedding.logits(self.final_norm.normed(held), words=words).float()


@register_lens
class HeadLogitLens(Lens):
    """What a head adds directly to the logits: the raw unembedding of the head's output.

    The attention head's logit lens of Attention Lens (https://arxiv.org/abs/2310.16270), figure 1.
    Unlike there, every norm on the way keeps the scale it had in the run (Elhage et al., 2021, "A
    Mathematical Framework for Transformer Circuits"), so that the heads' logits add up with those
    of the rest of the model. Biases and the soft-cap belong to the sum, not to a part of it, and
    are left out; the scale of the logits is in.
    """

    kind = "logit-head"
    site = "direct"
    is_linear = True

    def __init__(self, *, unembedding: Unembedding) -> None:
        super().__init__()
        self.unembedding = unembedding

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> HeadLogitLens:
        """The lens of a layer; all layers of a model have the same one."""
        model.layer(layer)
        return cls(unembedding=model.unembedding)

    def forward(
        self,
        held: Float[Tensor, "n head d_held"],
        *,
        words: Int[Tensor, " word"] | None = None,
    ) -> Float[Tensor, "n head word"]:
        """The head's share of the model's logits."""
        return self.unembedding.linear(held, words=words).float()
