"""The taps, where heads are read: the input of each attention's output projection."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from saccade.errors import ModelError, UsageError

# A norm whose scale can be frozen, so that the parts of its input add up in its output.


@dataclass(frozen=True)
class FrozenNorm:
    """A LayerNorm, RMSNorm or one of their variants, identified by calling it.

    Every such norm is ``gain * scale(x) * (x - mean(x)) + bias``, where ``scale`` is one number per
    position and RMSNorm omits the mean. Taking ``scale`` from the whole residual stream
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
            whole: the input of the norm. Axes of size 1 are broadcast to those of ``part``.
        """
        gain = self.gain.to(part.device)
        return self._centre(part.float()) * self.scale(whole).to(part.device) * gain

    def scale(self, whole: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch 1"]:
        """The scale of this norm for ``whole``: one number per position."""
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
    """Determine gain, bias and centring of a norm by calling it.

    Raises:
        ModelError: it does not have the form that `FrozenNorm` describes.
    """
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    is_offloaded = device.type == "meta"  # accelerate loads its weights when it is called
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
            hint="this model's heads cannot be traced to its tokens; please report the model type",
        )
    return replace(norm, module=module)


# Measured on 183 model types of transformers 5.22: these names cover 142 of them.
PROJECTION = re.compile(r"o_proj|out_proj|c_proj|dense|wo|Wo")
ATTENTION = re.compile(r"attn|attention|mixer", re.IGNORECASE)
ELSEWHERE = re.compile(r"mlp|vision|visual|audio|expert|cross|encoder_attn|feed_forward|ffn")
# Layers that mix positions without heads that attend: nothing to read at their projection.
NO_HEADS = re.compile(r"mamba|ssm|linearattention|lightning|gateddelta|rwkv|conv|recurrent", re.I)
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads")


@dataclass(frozen=True)
class HeadLayer:
    """The heads of one decoder layer, and the path from them to the residual stream.

    ``z``, the input of ``projection``, is ``n_heads`` blocks of ``d_head``. The output of the
    projection goes through ``post_norm`` (Gemma 2, OLMo 2) and is multiplied by ``multiplier``
    (Granite) before it is added to the residual stream.
    """

    index: int
    path: str
    projection: nn.Module
    attention: nn.Module
    block: nn.Module
    n_heads: int
    d_head: int
    post_norm: FrozenNorm | None = None
    multiplier: float = 1.0
    reaches_stream: bool = True
    """False if the stream itself is normed after each addition: no direct path to the logits."""


def all_blocks(hf: PreTrainedModel, at: HeadLayer) -> list[nn.Module]:
    """The blocks of the model in order, with or without heads; ``at`` is any layer with heads."""
    parts = at.path.split(".")
    depth = next(i for i, part in enumerate(parts) if part.isdigit())
    return list(hf.get_submodule(".".join(parts[:depth])).children())


def find_taps(hf: PreTrainedModel, pattern: str | None = None) -> tuple[HeadLayer, ...]:
    """Find the output projection of every attention layer, in order of depth.

    The rule: a module with the name of an output projection, inside one with the name of an
    attention.

    Args:
        pattern: a regular expression that the whole module path must match, instead of the rule.

    Raises:
        UsageError: the pattern is not a regular expression.
        ModelError: nothing matches, or a projection cannot be split into heads.
    """
    modules: dict[str, nn.Module] = dict(hf.named_modules())
    try:
        wanted = None if pattern is None else re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"`taps` is not a regular expression: {pattern!r}: {error}",
            hint="give a pattern such as r'model\\.layers\\.\\d+\\.self_attn\\.o_proj'",
        ) from error
    paths = [p for p in modules if (wanted.fullmatch(p) if wanted else _fits(p, modules))]
    layers = sorted((_head_layer(p, modules, hf) for p in paths), key=lambda layer: layer.index)
    _refuse_unusable(layers, hf, pattern)
    return tuple(layers)


def _fits(path: str, modules: dict[str, nn.Module]) -> bool:
    *above, name = path.split(".")
    if not PROJECTION.fullmatch(name) or not any(part.isdigit() for part in above):
        return False
    if any(ELSEWHERE.search(part) for part in above) or not any(map(ATTENTION.search, above)):
        return False
    attention = modules[_attention_path(path)]
    return not NO_HEADS.search(type(attention).__name__)


def _attention_path(path: str) -> str:
    """The nearest module above with the name of an attention; else the parent."""
    above = path.split(".")[:-1]
    depths = [depth for depth, part in enumerate(above, start=1) if ATTENTION.search(part)]
    return ".".join(above[: depths[-1]] if depths else above)


def _head_layer(path: str, modules: dict[str, nn.Module], hf: PreTrainedModel) -> HeadLayer:
    parts = path.split(".")
    depth = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if depth is None:
        raise ModelError(
            f"{path} is not inside a numbered decoder layer",
            hint="give `taps` a pattern such as r'model\\.layers\\.\\d+\\.self_attn\\.o_proj'",
        )
    attention = modules[_attention_path(path)]
    width = in_features(modules[path], path)
    n_heads = _count_heads(attention, hf, width, path)
    return HeadLayer(
        index=int(parts[depth]),
        path=path,
        projection=modules[path],
        attention=attention,
        block=modules[".".join(parts[: depth + 1])],
        n_heads=n_heads,
        d_head=width // n_heads,
    )


def in_features(projection: nn.Module, path: str) -> int:
    """The input width of a Linear, Conv1D or quantised projection."""
    if isinstance(width := getattr(projection, "in_features", None), int):
        return width
    if isinstance(width := getattr(projection, "nx", None), int):  # transformers' Conv1D
        return width
    raise ModelError(
        f"{path} is a {type(projection).__name__}, not a linear map",
        hint="give `taps` a pattern that names the attention's output projections",
    )


def _count_heads(attention: nn.Module, hf: PreTrainedModel, width: int, path: str) -> int:
    config = hf.config.get_text_config(decoder=True)
    # The layer's own setting comes first: head counts and sizes may differ between layers.
    counts = [getattr(attention, name, None) for name in HEAD_COUNTS]
    counts.append(getattr(config, "num_attention_heads", None))
    sizes = [getattr(attention, name, None) for name in ("v_head_dim", "head_dim")]
    counts += [width // size for size in sizes if isinstance(size, int) and size > 0]
    for count in counts:
        if isinstance(count, int) and count > 0 and width % count == 0:
            return count
    raise ModelError(
        f"{path} reads {width} features, and {type(attention).__name__} does not define how to "
        "split them into heads",
        hint="this model type is not supported; please report it",
    )


def signature(layer: HeadLayer) -> tuple[Any, ...]:
    """Equal for layers of the same structure, so that one of them can be tried for all."""
    shapes = [(name, type(m).__name__) for name, m in layer.block.named_modules()]
    widths = [(name, tuple(p.shape)) for name, p in layer.attention.named_parameters()]
    return (layer.n_heads, layer.d_head, tuple(shapes), tuple(widths))


def _refuse_unusable(layers: list[HeadLayer], hf: PreTrainedModel, pattern: str | None) -> None:
    rule = "the usual rule" if pattern is None else f"the pattern {pattern!r}"
    if not layers:
        raise ModelError(
            f"found no attention heads in this {hf.config.model_type} model by {rule}",
            hint="give `taps` a regular expression that matches the module paths of the "
            "attention's output projections",
        )
    indices = [layer.index for layer in layers]
    if twice := sorted({index for index in indices if indices.count(index) > 1}):
        found = ", ".join(layer.path for layer in layers if layer.index == twice[0])
        raise ModelError(
            f"layer {twice[0]} has more than one output projection by {rule}: {found}",
            hint="give `taps` a regular expression that matches one of them in each layer",
        )
