"""Where the heads of a model can be read: the input of each attention's output projection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from saccade.errors import ModelError, UsageError
from saccade.heads.norms import FrozenNorm

# Measured on 183 model types of transformers 5.22: these names cover 142 of them.
PROJECTION = re.compile(r"o_proj|out_proj|c_proj|dense|wo|Wo")
ATTENTION = re.compile(r"attn|attention|mixer", re.IGNORECASE)
ELSEWHERE = re.compile(r"mlp|vision|visual|audio|expert|cross|encoder_attn|feed_forward|ffn")
# Layers that mix positions without heads that attend: nothing to read at their projection.
NO_HEADS = re.compile(r"mamba|ssm|linearattention|lightning|gateddelta|rwkv|conv|recurrent", re.I)
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_q_heads")


@dataclass(frozen=True)
class HeadLayer:
    """The heads of one decoder layer, and the way from them to the residual stream.

    ``z``, the input of ``projection``, is ``n_heads`` blocks of ``d_head``. What the projection
    writes goes through ``post_norm`` (Gemma 2, OLMo 2) and is multiplied by ``multiplier``
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
    """False where the stream itself is normed after each addition: no direct path to the words."""


def find_taps(hf: PreTrainedModel, pattern: str | None = None) -> tuple[HeadLayer, ...]:
    """Find the output projection of every attention layer, in order of depth.

    The rule: a module named as output projections are, under one named as attention is.

    Args:
        pattern: a regular expression that the whole module path must match, instead of the rule.

    Raises:
        UsageError: the pattern is no regular expression.
        ModelError: nothing matches, or a projection cannot be split into heads.
    """
    modules: dict[str, nn.Module] = dict(hf.named_modules())
    try:
        wanted = None if pattern is None else re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(
            f"`taps` is no regular expression: {pattern!r}: {error}",
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
    """The nearest module above that is named as attention is; else the parent."""
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
    """The width that a Linear, Conv1D or quantised projection reads."""
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
    # The layer's own word comes first: head counts and sizes may differ from layer to layer.
    counts = [getattr(attention, name, None) for name in HEAD_COUNTS]
    counts.append(getattr(config, "num_attention_heads", None))
    sizes = [getattr(attention, name, None) for name in ("v_head_dim", "head_dim")]
    counts += [width // size for size in sizes if isinstance(size, int) and size > 0]
    for count in counts:
        if isinstance(count, int) and count > 0 and width % count == 0:
            return count
    raise ModelError(
        f"{path} reads {width} features, which {type(attention).__name__} does not say how to "
        "split into heads",
        hint="this model type is not supported; please report it",
    )


def signature(layer: HeadLayer) -> tuple[Any, ...]:
    """Equal for layers that are built alike, so that one of them can be tried for all."""
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
