"""From the final normed state to logits: matrix, bias, scale and soft-cap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from saccade.errors import ModelError
from saccade.heads.running import agree
from saccade.heads.trial import Trial

SOFTCAPS = ("final_logit_softcapping", "output_logit_soft_cap")
MULTIPLIERS = ("logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier")
DIVISORS = ("logits_scaling",)


@dataclass(frozen=True)
class Unembedding:
    """The map from the final normed state to the model's logits.

    ``logits = softcap * tanh((weight @ final + bias) * scale / softcap)``; models without a
    soft-cap (all but Gemma 2 and its kin) stop before the tanh. The scale is Cohere's
    ``logit_scale`` or Granite's ``1 / logits_scaling``.

    >>> unembedding = Unembedding(weight=torch.eye(3), bias=None, scale=0.5, softcap=None)
    >>> unembedding.logits(torch.tensor([[2.0, 4.0, 6.0]]))
    tensor([[1., 2., 3.]])
    """

    weight: Float[Tensor, "d_vocab d_model"]
    bias: Float[Tensor, " d_vocab"] | None
    scale: float
    softcap: float | None

    def logits(
        self, final: Float[Tensor, "*batch d_model"], *, words: Int[Tensor, " word"] | None = None
    ) -> Float[Tensor, "*batch n"]:
        """The model's own logits, for every word or only for the ids in ``words``."""
        logits = self.linear(final, words=words)
        if self.bias is not None:
            bias = self.bias if words is None else self.bias[words.to(self.bias.device)]
            logits = logits + bias * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    def linear(
        self, part: Float[Tensor, "*batch d_model"], *, words: Int[Tensor, " word"] | None = None
    ) -> Float[Tensor, "*batch n"]:
        """The share of the logits that a part of the final state has: no bias, no soft-cap."""
        weight = self.weight if words is None else self.weight[words.to(self.weight.device)]
        logits = part.to(weight) @ weight.T
        return logits if self.scale == 1.0 else logits * self.scale


@torch.no_grad()
def find_unembedding(hf: PreTrainedModel, trial: Trial) -> Unembedding:
    """The unembedding of a model; scale and soft-cap are the config's, tried on a short text.

    Where none of the config's numbers gives the model's logits, the scale is measured from them;
    `saccade.heads.checks.check_logits` has the last word.
    """
    head = hf.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None or head.weight.dim() != 2:
        raise ModelError(
            f"this {hf.config.model_type} model has no output embedding to turn states into words",
            hint="open the checkpoint of a causal language model, not of its bare base",
        )
    final, expected = trial.final, trial.logits
    if final.shape[-1] != head.weight.shape[1]:
        raise ModelError(
            f"the base model ends in {final.shape[-1]} features and the output embedding reads "
            f"{head.weight.shape[1]}",
            hint="this model type is not supported; please report it",
        )
    softcap = _softcap(hf)
    weight, bias = _values(head, "weight"), _values(head, "bias")
    assert weight is not None, "a linear map has a weight"
    plain = Unembedding(weight=weight, bias=bias, scale=1.0, softcap=None)
    final, expected = final.to(weight.device), expected.to(weight.device)
    raw = plain.logits(final).float()
    for scale in _scales(hf, raw, expected.float(), softcap):
        found = Unembedding(weight=plain.weight, bias=plain.bias, scale=scale, softcap=softcap)
        if agree(found.logits(final), expected, dtype=hf.dtype):
            return found
    return plain


def _values(head: nn.Module, name: str) -> Tensor | None:
    """A parameter; where accelerate keeps it elsewhere, the values behind the placeholder."""
    parameter = getattr(head, name, None)
    if parameter is None or parameter.device.type != "meta":
        return parameter
    hook = getattr(head, "_hf_hook", None)
    for each in (hook, *getattr(hook, "hooks", ())):
        if (weights := getattr(each, "weights_map", None)) is not None:
            return weights[name]
    raise AssertionError(f"{name} of the output embedding is a placeholder without values")


def _softcap(hf: PreTrainedModel) -> float | None:
    config = hf.config.get_text_config(decoder=True)
    found = [getattr(config, name, None) for name in SOFTCAPS]
    return next((float(cap) for cap in found if isinstance(cap, int | float) and cap > 0), None)


def _scales(
    hf: PreTrainedModel, raw: Tensor, expected: Tensor, softcap: float | None
) -> Iterator[float]:
    config = hf.config.get_text_config(decoder=True)
    yield 1.0
    for name in MULTIPLIERS:
        if isinstance(value := getattr(config, name, None), int | float):
            yield float(value)
    for name in DIVISORS:
        if isinstance(value := getattr(config, name, None), int | float) and value:
            yield 1.0 / value
    if softcap is not None:
        can_undo = expected.abs() < 0.999 * softcap  # the rest is rounded to the cap itself
        raw, expected = raw[can_undo], softcap * torch.atanh(expected[can_undo] / softcap)
    yield float((raw * expected).sum() / raw.square().sum().clamp_min(1e-30))
