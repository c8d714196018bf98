"""A norm whose scale can be held still, so that the parts of its input add up in its output."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.errors import ModelError


@dataclass(frozen=True)
class FrozenNorm:
    """A LayerNorm, RMSNorm or one of their variants, known only by what it does.

    Every such norm is ``gain * scale(x) * (x - mean(x)) + bias``, where ``scale`` is one number a
    position and the mean is left out by RMSNorm. Taking ``scale`` from the whole residual stream
    makes the rest linear ("frozen layer norm" of Elhage et al., 2021, "A Mathematical Framework for
    Transformer Circuits"), so that the parts written by single heads add up.

    >>> norm = probe_norm(nn.LayerNorm(5), d_model=5)
    >>> parts = torch.randn(2, 5)
    >>> whole = parts.sum(0, keepdim=True)
    >>> total = norm.frozen(parts, whole).sum(0) + norm.bias
    >>> torch.allclose(total, norm.normed(whole), atol=1e-5)
    True
    """

    module: nn.Module
    gain: Float[Tensor, " d_model"]
    bias: Float[Tensor, " d_model"]
    is_centred: bool

    def normed(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The norm itself, its statistics taken from ``x``."""
        return self.module(x)

    def frozen(
        self, part: Float[Tensor, "*batch d_model"], whole: Float[Tensor, "*#batch d_model"]
    ) -> Float[Tensor, "*batch d_model"]:
        """What ``part`` of ``whole`` becomes when the scale is that of ``whole``; no bias.

        Args:
            part: any part of ``whole``; parts that sum to ``whole`` give parts that sum to
                ``normed(whole) - bias``.
            whole: what entered the norm. Axes of size 1 are spread over those of ``part``.
        """
        gain = self.gain.to(part.device)
        return self._centre(part.float()) * self.scale(whole).to(part.device) * gain

    def scale(self, whole: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch 1"]:
        """The one number a position by which this norm stretches ``whole``."""
        direction = self._centre(whole.float()) * self.gain.to(whole.device)
        normed = self.module(whole).float().to(whole.device) - self.bias.to(whole.device)
        squared = direction.square().sum(-1, keepdim=True)
        # A stream of exact zeros has no direction; any scale is right for it.
        return (normed * direction).sum(-1, keepdim=True) / squared.clamp_min(1e-30)

    def _centre(self, x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True) if self.is_centred else x


FinalNorm = FrozenNorm
"""The norm before the unembedding (an ``nn.Identity`` where a model has none)."""


@torch.no_grad()
def probe_norm(module: nn.Module, *, d_model: int, path: str = "the norm") -> FrozenNorm:
    """Find out gain, bias and centring of a norm by calling it.

    Raises:
        ModelError: it is not of the form that `FrozenNorm` describes.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    is_offloaded = device.type == "meta"  # accelerate brings its weights when it is called
    device = torch.device("cpu") if is_offloaded else device
    # Half-precision weights would round the gain; a norm is small enough to copy.
    exact = module if is_offloaded else copy.deepcopy(module).float()

    def call(x: Tensor) -> Tensor:
        return exact(x).float().to(device)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, d_model, generator=generator).to(device)
    bias = call(torch.zeros_like(x))[0]
    is_centred = torch.allclose(call(x + 1.0), call(x), atol=1e-3, rtol=1e-3)
    # Alternating signs stay away from zero after centring, so dividing by them is safe.
    probe = torch.ones(1, d_model, device=device)
    probe[:, ::2] = -1.0
    centred = probe - probe.mean(-1, keepdim=True) if is_centred else probe
    gain = (call(probe) - bias)[0] / centred[0]
    norm = FrozenNorm(module=exact, gain=gain, bias=bias, is_centred=is_centred)
    if not torch.allclose(norm.frozen(x, x) + bias, call(x), atol=1e-3, rtol=1e-3):
        raise ModelError(
            f"{path} ({type(module).__name__}) is not a LayerNorm or RMSNorm: its output is not "
            "a scaled copy of its input",
            hint="this model's heads cannot be traced to its words; please report the model type",
        )
    return replace(norm, module=module)
