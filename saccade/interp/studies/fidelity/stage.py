"""A text at one layer of a model, cached for interventions: predictions of lens and model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import LensError
from saccade.interp.heads.capture import output_matrix
from saccade.interp.heads.rerun import Rerun
from saccade.interp.lenses.held_out import SampledTokens, sample_tokens
from saccade.interp.lenses.lens import Lens

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

# The first tokens of a window attend to little but themselves, and are not typical of a text.
FIRST = 4
N_TOKENS = 2048
# Positions whose full logits are in memory at once: 50 MB for the default model.
CHUNK = 256


@dataclass(frozen=True)
class Stage:
    """Windows of text, run once; the activations of one layer's heads can then be replaced.

    Everything is measured at the same n positions: all of each window except the first few.
    """

    model: LanguageModel
    layer: int
    rerun: Rerun
    tokens: SampledTokens
    """The sampled tokens that stand for the vocabulary."""
    before: Float[Tensor, "n token"]
    """The model's logits of them."""
    negentropy: Float[Tensor, " n"]
    """Sum of p log p over the whole vocabulary, of the model's prediction."""
    mean: Float[Tensor, "head d_head"]
    """The mean activations of the heads over the measured positions."""
    entered: Float[Tensor, "n d_model"]
    """The input of the final norm there."""

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        model: LanguageModel,
        ids: Int[Tensor, "window pos"],
        layer: int,
        *,
        n_tokens: int = N_TOKENS,
        seed: int = 0,
    ) -> Stage:
        """Run the windows and choose the tokens: always the likeliest, others at random."""
        ids = ids.to(model.device)
        rerun = Rerun.record(model, ids, layer)
        final = rerun.final[:, FIRST:].flatten(0, 1)
        likely, mean, negentropy = _predictions(model, final)
        # The uniform part of the draw bounds the weight of rare tokens, and so the noise.
        tokens = sample_tokens(
            likely,
            mean + 1 / model.d_vocab,
            n_tokens=min(n_tokens, model.d_vocab),
            generator=torch.Generator().manual_seed(seed),
        )
        return cls(
            model=model,
            layer=layer,
            rerun=rerun,
            tokens=tokens,
            before=model.unembedding.logits(final, tokens=tokens.ids).float(),
            negentropy=negentropy,
            mean=rerun.z[:, FIRST:].float().mean((0, 1)),
            entered=rerun.final_residual[:, FIRST:].flatten(0, 1),
        )

    @property
    def n_windows(self) -> int:
        """Number of windows of text."""
        return len(self.rerun.ids)

    @property
    def z(self) -> Float[Tensor, "n head d_head"]:
        """The activations of the heads at the measured positions."""
        return self.rerun.z[:, FIRST:].flatten(0, 1)

    @property
    def n_positions(self) -> int:
        """Number of measured positions per window."""
        return self.rerun.ids.shape[1] - FIRST

    def by_window(
        self, values: Float[Tensor, "n head *more"]
    ) -> Float[Tensor, "window head *more"]:
        """The mean over the positions of each window."""
        return values.unflatten(0, (self.n_windows, -1)).mean(1)

    def answer(
        self, head: int, activation: Float[Tensor, "window pos d_head"]
    ) -> Float[Tensor, "n token"]:
        """The model's logits with this activation for one head of the layer."""
        z = self.rerun.z.clone()
        z[:, :, head] = activation.to(z)
        final = self.rerun.with_heads(z)[:, FIRST:].flatten(0, 1)
        return self.model.unembedding.logits(final, tokens=self.tokens.ids).float()

    def lens_logits(
        self, lens: Lens, z: Float[Tensor, "n head d_head"]
    ) -> Float[Tensor, "n head token"]:
        """The logits of a lens for the activations ``z`` at the measured positions."""
        if lens.site == "residual":
            raise LensError(
                f"a {lens.kind} lens reads the residual stream, not a head: no head can be "
                "ablated in it",
                hint="measure lenses of heads: kind head, dense, jacobian or logit-head",
            )
        activation = z if lens.site == "head" else self._direct(z)
        return lens(activation, tokens=self.tokens.ids).float()

    def _direct(self, z: Float[Tensor, "n head d_head"]) -> Float[Tensor, "n head d_model"]:
        """What the activations ``z`` add directly to the final state, with frozen norms.

        As `saccade.interp.heads.capture.direct_states`, but for replaced activations.
        """
        at = self.model.layer(self.layer)
        added = torch.einsum("nhi,hid->nhd", z.float(), output_matrix(at).float())
        if at.post_norm is not None:
            wrote = at.projection(self.z.flatten(-2))[:, None]
            added = at.post_norm.frozen(added, wrote)
        return self.model.final_norm.frozen(added * at.multiplier, self.entered[:, None])

    def kl(self, lens: Lens) -> Float[Tensor, "window head"]:
        """KL(model || lens), the mean over the measured positions of each window."""
        logits = self.lens_logits(lens, self.z)
        log_p = (self.before + self.tokens.log_weight).log_softmax(-1)  # over the sampled tokens
        total = (logits + self.tokens.log_weight).logsumexp(-1)
        expected = torch.einsum("nhw,nw->nh", logits, log_p.exp())
        return self.by_window(self.negentropy[:, None] - expected + total)


def _predictions(model: LanguageModel, final: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Per token the largest and the mean probability; per position sum p log p."""
    largest = final.new_zeros(model.d_vocab, dtype=torch.float32)
    mean, negentropy = torch.zeros_like(largest), []
    for some in final.split(CHUNK):
        log_p = model.unembedding.logits(some).float().log_softmax(-1)
        p = log_p.exp()
        largest = torch.maximum(largest, p.amax(0))
        mean += p.sum(0) / len(final)
        negentropy.append((p * log_p).sum(-1))
    return largest, mean, torch.cat(negentropy)
