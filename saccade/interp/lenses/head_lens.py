"""The lenses of attention heads: factored (the default) and dense, as published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.interp.heads.capture import head_outputs
from saccade.interp.lenses.lens import FrozenUnembedding, Lens, Method, new_parameter

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


class HeadLens(Lens):
    """A factored lens: reads ``z``, writes through the frozen unembedding, plus a token bias.

    ``logits = W_U (A z + b) + c`` with A of d_head x d_model. A head writes ``W_O z``, so a lens on
    its output sees at most d_head dimensions and loses nothing by reading z itself; and the model's
    own logits are ``W_U f``, so nothing is lost by writing through W_U either. For a GPT-2 head
    that is 49 thousand parameters; the published lens (`DenseHeadLens`) has 38.6 million.
    """

    kind = "head"
    site = "head"

    def __init__(
        self, *, n_heads: int, d_head: int, unembedding: Float[Tensor, "d_vocab d_model"]
    ) -> None:
        super().__init__()
        d_vocab, d_model = unembedding.shape
        self.unembed = FrozenUnembedding(unembedding)
        self.weight = new_parameter(n_heads, d_head, d_model, like=unembedding)
        self.bias = new_parameter(n_heads, d_model, like=unembedding)
        self.token_bias = new_parameter(n_heads, d_vocab, like=unembedding)

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> HeadLens:
        """A lens before fitting: it predicts the uniform distribution."""
        at = model.layer(layer)
        return cls(n_heads=at.n_heads, d_head=at.d_head, unembedding=model.unembedding.weight)

    @classmethod
    def methods(cls) -> Mapping[str, Method]:
        """Closed form, optionally followed by gradient steps."""
        from saccade.interp.lenses.closed_form import solve_gathered, solved_layers
        from saccade.interp.lenses.polish import polish_solved

        return {
            "closed-form": Method.closed_form(solve_gathered),
            "polish": Method(run=polish_solved, keeps_sums=True),
            "train": Method.training(solved_layers),
        }

    def hidden(
        self, activation: Float[Tensor, "n head d_activation"]
    ) -> Float[Tensor, "n head d_model"]:
        """The final state that the lens predicts from the activation, before the unembedding."""
        return torch.einsum("nhi,hid->nhd", activation.float(), self.weight) + self.bias

    def forward(
        self,
        activation: Float[Tensor, "n head d_activation"],
        *,
        tokens: Int[Tensor, " token"] | None = None,
    ) -> Float[Tensor, "n head token"]:
        """Vocabulary logits for each position and head; of all tokens by default."""
        bias = self.token_bias if tokens is None else self.token_bias[:, tokens]
        if len(activation) <= activation.shape[-1]:
            return self.unembed(self.hidden(activation), tokens).float() + bias
        # Many positions: A W_U^T once (d_head rows per head), instead of W_U for every position.
        by_token = self.unembed(self.weight, tokens).float()  # [head, d_head, token]
        baseline = self.unembed(self.bias, tokens).float() + bias  # [head, token]
        logits = torch.baddbmm(baseline[:, None], activation.float().transpose(0, 1), by_token)
        return logits.transpose(0, 1)


class DenseHeadLens(Lens):
    """The published lens: a dense map of d_model x d_vocab for each head, initialised with W_U.

    Attention Lens, section 2; the authors' code initialises every lens with the unembedding and
    its bias. It reads the output of the head, ``a = W_O z``.
    """

    kind = "dense"
    site = "head"

    def __init__(
        self,
        *,
        output: Float[Tensor, "head d_head d_model"],
        unembedding: Float[Tensor, "d_vocab d_model"],
    ) -> None:
        super().__init__()
        d_vocab, d_model = unembedding.shape
        n_heads = len(output)
        self.register_buffer("output", output, persistent=False)
        self.output: Tensor
        self.weight = nn.Parameter(
            unembedding.detach().float().T.expand(n_heads, d_model, d_vocab).contiguous()
        )
        self.bias = new_parameter(n_heads, d_vocab, like=unembedding)

    @classmethod
    def start(cls, model: LanguageModel, layer: int) -> DenseHeadLens:
        """The authors' initialisation: the unembedding, applied to the output of each head."""
        return cls(output=output_maps(model, layer), unembedding=model.unembedding.weight)

    @classmethod
    def methods(cls) -> Mapping[str, Method]:
        """By gradient steps; the defaults of `GradientConfig` are those of the paper's recipe."""
        trained = super().methods()
        return {**trained, "published": trained["train"]}

    def forward(
        self,
        activation: Float[Tensor, "n head d_activation"],
        *,
        tokens: Int[Tensor, " token"] | None = None,
    ) -> Float[Tensor, "n head token"]:
        """Vocabulary logits for each position and head; of all tokens by default."""
        written = torch.einsum("nhi,hid->hnd", activation.float(), self.output)
        weight = self.weight if tokens is None else self.weight[:, :, tokens]
        bias = self.bias if tokens is None else self.bias[:, tokens]
        return torch.baddbmm(bias[:, None], written, weight).transpose(0, 1)


def output_maps(model: LanguageModel, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """``W_O`` of each head, computed with the projection itself (also correct if quantised)."""
    at = model.layer(layer)
    units = torch.eye(at.d_head, device=model.unembedding.weight.device)
    every_head = units[:, None].expand(at.d_head, at.n_heads, at.d_head)
    return head_outputs(at, every_head.to(model.hf.dtype)).transpose(0, 1).float().contiguous()


# The prediction of a single head: a layer's lens without the work for the other heads.


def said_by_head(
    lens: Lens, activation: Float[Tensor, "n head d_activation"], head: int
) -> Float[Tensor, "n d_vocab"]:
    """Vocabulary logits of one head at each position.

    The product with the unembedding takes nearly all of the time, so only this head is computed.
    """
    if isinstance(lens, HeadLens):
        hidden = lens.hidden(activation)[:, head]  # [n, d_model]
        return lens.unembed(hidden, None).float() + lens.token_bias[head]
    if lens.site == "direct":
        return lens(activation[:, head : head + 1])[:, 0]
    return lens(activation)[:, head]
