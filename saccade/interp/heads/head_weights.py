"""The weights of single heads: W_Q, W_K, W_V and W_O, of any model whose projections can be found.

Nothing is found by its name. A short run shows which linear maps read the attention's input, and
queries, keys and values as the attention kernel gets them; a map, or a part of one (GPT-2, NeoX,
Falcon and Phi-3 fuse the three), is that of the queries if its output is the query. Position
(rotary) and a norm of queries and keys may stand between: the norm is found by what it reads, and
position is measured, as a linear map for each position (`rotations`). In the end weights, norms and
these maps must give back the queries, keys and values of the run, or the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.errors import ModelError
from saccade.interp.heads.attention_weights import KernelInput, recorded_kernels
from saccade.interp.heads.capture import (
    Readable,
    agree,
    on_input,
    on_output,
    output_matrix,
    run_base,
    trial_ids,
)
from saccade.interp.heads.taps import FrozenNorm, HeadLayer, probe_norm

MOST_SCORES = 2**24  # of one run that measures positions: bounds its memory


@dataclass(frozen=True, eq=False)
class HeadMap:
    """From the scaled stream to the queries (keys, values) of each head, before position.

    The norm before the attention is folded in: with its scale ``s`` (`LayerWeights.scaled`), the
    raw query is ``s x @ weight + bias``. A norm of queries or keys (Qwen 3, OLMo 2) comes after.
    """

    weight: Float[Tensor, "head d_model d_head"]
    bias: Float[Tensor, "head d_head"]
    norm: FrozenNorm | None
    """The norm of raw queries, over the features of one head or of all together."""
    source: nn.Module
    """The module whose output gets position next: the norm, or the linear map."""
    features: Int[Tensor, " feature"]
    """Those of the output of ``source`` that are used, head by head."""

    def linear(self, part: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch head d_head"]:
        """What a part of the scaled stream adds to the raw queries; no bias."""
        return torch.einsum("...m,hmd->...hd", part.to(self.weight), self.weight)

    def raw(self, scaled: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch head d_head"]:
        """The queries before their own norm."""
        return self.linear(scaled) + self.bias

    def full(self, scaled: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch head d_head"]:
        """The queries before position."""
        raw = self.raw(scaled)
        return raw if self.norm is None else self.frozen(raw, raw) + self.offset

    def frozen(
        self,
        part: Float[Tensor, "*batch head d_head"],
        whole: Float[Tensor, "*#batch head d_head"],
    ) -> Float[Tensor, "*batch head d_head"]:
        """A part of the raw queries through their norm, its scale frozen at that of ``whole``."""
        if self.norm is None:
            return part
        if self.spans_heads:
            return self.norm.frozen(part.flatten(-2), whole.flatten(-2)).view(part.shape)
        return self.norm.frozen(part, whole)

    @property
    def offset(self) -> Float[Tensor, "head d_head"]:
        """The bias of the norm of queries: what no part of the stream adds."""
        if self.norm is None:
            return torch.zeros_like(self.bias)
        bias = self.norm.bias.to(self.bias)
        return bias.view(self.bias.shape) if self.spans_heads else bias.expand(self.bias.shape)

    @property
    def spans_heads(self) -> bool:
        """Whether the norm of queries takes its scale over all heads together (OLMo 2)."""
        return self.norm is not None and self._width != self.bias.shape[-1]

    @property
    def _width(self) -> int:
        assert self.norm is not None, "asked of a norm only"
        return len(self.norm.gain)

    def folded(self) -> Float[Tensor, "head d_model d_head"]:
        """The weights with the norm of queries folded in, up to its positive scale."""
        if self.norm is None:
            return self.weight
        gain = self.norm.gain.to(self.weight)
        if self.spans_heads:
            flat = self.weight.transpose(0, 1).flatten(1)  # [d_model, head * d_head]
            flat = flat - flat.mean(-1, keepdim=True) if self.norm.is_centred else flat
            return (flat * gain).view(-1, *self.bias.shape).transpose(0, 1)
        weight = self.weight
        weight = weight - weight.mean(-1, keepdim=True) if self.norm.is_centred else weight
        return weight * gain


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """The weights of the heads of one layer. Heads may share keys and values (grouped queries)."""

    at: HeadLayer
    norm: FrozenNorm
    """Before the attention; an identity where it reads the stream itself (OLMo 2)."""
    query: HeadMap
    key: HeadMap
    value: HeadMap
    output: Float[Tensor, "head d_head d_model"]
    """From the activation to the stream, with the gain of a norm on the way and the multiplier; the
    scale of that norm is left out."""

    def scaled(self, stream: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The stream times the scale of the norm before the attention."""
        return stream.float() * self.norm.scale(stream)

    def key_head(self, head: int) -> int:
        """The number of the key head, and value head, that a head reads."""
        return head * len(self.key.bias) // self.at.n_heads

    def of_heads(self, part: HeadMap) -> Float[Tensor, "head d_model d_head"]:
        """The folded weights of queries, keys or values, once for each head of the layer."""
        weight = part.folded()
        return weight.repeat_interleave(self.at.n_heads // len(weight), 0)


class Rotations(NamedTuple):
    """What position does to queries and keys, as they reach the kernel: ``query @ rotation``.

    Rotary embeddings turn them; a factor (OPT's queries, YaRN) is part of the map; without either
    it is the identity.
    """

    query: Float[Tensor, "pos d_head d_head"]
    key: Float[Tensor, "pos d_head d_head"]

    def undone(
        self, turned: Float[Tensor, "batch head pos d_head"], *, of_keys: bool
    ) -> Float[Tensor, "batch head pos d_head"]:
        """Queries or keys of the kernel, back to what they were before position."""
        inverse = self.inverse()
        maps = inverse.key if of_keys else inverse.query
        return torch.einsum("bhpd,pde->bhpe", turned, maps[: turned.shape[2]].to(turned))

    def inverse(self) -> Rotations:
        """The maps back: for a text of several runs, inverted once."""
        return Rotations(*(torch.linalg.inv(maps.double()).to(maps) for maps in self))


@torch.no_grad()
def head_weights(model: Readable, layers: Sequence[int] | None = None) -> dict[int, LayerWeights]:
    """The weights of the heads of some layers, by layer; of all by default.

    Norms are folded as in Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits":
    gain and centring into the weights, the scale left to the run.

    Raises:
        ModelError: the maps of a layer are not found, or do not give its queries, keys and values.
    """
    wanted = list(model.layers) if layers is None else [model.layer(i) for i in layers]
    seen = _run(model, wanted, trial_ids(model.hf))
    found = {at.index: _layer_weights(at, seen[at.index]) for at in wanted}
    known: list[Rotations] = []
    for layer, weights in found.items():
        scaled = weights.scaled(seen[layer].stream)
        values = weights.value.full(scaled).transpose(1, 2)
        if not _agree(values, seen[layer].got.value, model):
            raise _refusal(weights.at, "what was found does not give its values")
        _turned(weights, seen[layer], known)
    return found


@torch.no_grad()
def rotations(
    model: Readable, weights: Sequence[LayerWeights], ids: Int[Tensor, "1 pos"]
) -> dict[int, Rotations]:
    """What position does to the queries and keys of some layers, at every position of a text.

    The attention of a layer runs again with unit vectors as its queries and keys, unless the maps
    of another layer give its own queries and keys. The tokens play no part: any text of as many
    tokens has the same maps.
    """
    seen = _run(model, [each.at for each in weights], ids, modules=False)
    known: list[Rotations] = []
    return {each.at.index: _turned(each, seen[each.at.index], known) for each in weights}


# What a short run shows of a layer.


class _Seen:
    """One layer in one run: inputs and outputs of the modules of its block, and its kernel."""

    def __init__(self, model: Readable, at: HeadLayer) -> None:
        self.model, self.at = model, at
        self.inputs: dict[nn.Module, Tensor] = {}
        self.outputs: dict[nn.Module, Tensor] = {}
        self.call: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self.kernel: KernelInput | None = None

    def watch(self, stack: ExitStack, *, modules: bool) -> None:
        inside = self.at.block.modules() if modules else (self.at.block,)
        for module in inside:
            stack.enter_context(on_input(module, partial(self._put, self.inputs, module)))
            stack.enter_context(on_output(module, partial(self._put, self.outputs, module)))
        stack.enter_context(
            self.at.attention.register_forward_pre_hook(self._called, with_kwargs=True)
        )

    def _put(self, into: dict[nn.Module, Tensor], module: nn.Module, tensor: Any) -> None:
        if isinstance(tensor, Tensor) and tensor.is_floating_point():
            into[module] = tensor.clone()  # some models add to their tensors in place later on

    def _called(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.call = args, dict(kwargs)

    @property
    def stream(self) -> Float[Tensor, "batch pos d_model"]:
        """The stream before the block."""
        return self.inputs[self.at.block]

    @property
    def read(self) -> Float[Tensor, "batch pos d_model"]:
        """What the attention reads."""
        return self.inputs[self.at.attention]

    @property
    def got(self) -> KernelInput:
        assert self.kernel is not None, "recorded_kernels refuses a layer without a kernel"
        return self.kernel


def _run(
    model: Readable, layers: Sequence[HeadLayer], ids: Tensor, *, modules: bool = True
) -> dict[int, _Seen]:
    seen = {at.index: _Seen(model, at) for at in layers}

    def give(layer: int, kernel: KernelInput, _: Tensor) -> None:
        seen[layer].kernel = kernel

    with ExitStack() as stack:
        for each in seen.values():
            each.watch(stack, modules=modules)
        stack.enter_context(recorded_kernels(model.hf, layers, give))
        run_base(model.hf, ids)
    return seen


def _layer_weights(at: HeadLayer, seen: _Seen) -> LayerWeights:
    if at.attention not in seen.inputs or at.block not in seen.inputs:
        raise _refusal(at, "its attention gets no state that could be followed to its queries")
    norm = _input_norm(at, seen)
    key, value = map(_each_once, (seen.got.key, seen.got.value))
    shape = (at.n_heads, key.shape[1])
    return LayerWeights(
        at,
        norm,
        _find(at, seen, norm, "query", seen.got.query, shape),
        _find(at, seen, norm, "key", key, shape),
        _find(at, seen, norm, "value", value, shape),
        _output(at),
    )


def _refusal(at: HeadLayer, reason: str) -> ModelError:
    return ModelError(
        f"cannot separate the query, key and value weights of {at.path}: {reason}",
        hint="what needs the weights of heads is not available for this model; effects, lenses and "
        "attention are",
    )


def _input_norm(at: HeadLayer, seen: _Seen) -> FrozenNorm:
    d_model = seen.read.shape[-1]
    if _same(seen.read, seen.stream):
        return probe_norm(nn.Identity(), d_model=d_model)
    for path, module in at.block.named_modules():
        is_norm = not list(module.children()) and not isinstance(module, nn.Linear | nn.Dropout)
        if (
            is_norm
            and _same(seen.outputs.get(module), seen.read)
            and _same(seen.inputs.get(module), seen.stream)
        ):
            return probe_norm(module, d_model=d_model, path=f"{at.path} -> {path}")
    raise _refusal(at, "no norm of the stream gives what its attention reads")


def _each_once(tensor: Float[Tensor, "batch head pos d"]) -> Float[Tensor, "batch key_head pos d"]:
    """Key heads once each, where a model repeats them for every head that reads them."""
    n = tensor.shape[1]
    for kept in range(1, n):
        if n % kept == 0:
            groups = tensor.unflatten(1, (kept, n // kept))
            if bool((groups == groups[:, :, :1]).all()):
                return groups[:, :, 0]
    return tensor


def _find(
    at: HeadLayer,
    seen: _Seen,
    norm: FrozenNorm,
    role: str,
    wanted: Float[Tensor, "batch head pos d_head"],
    shape: tuple[int, int],
) -> HeadMap:
    """The map whose output is the wanted queries, keys or values, up to position.

    Rotary embeddings leave the first position as it is (up to a factor), and lengths everywhere.
    """
    wanted = wanted.transpose(1, 2)  # [batch, pos, head, d_head]
    n, d = wanted.shape[2:]
    for module, output in seen.outputs.items():
        if list(module.children()) or module is at.projection:
            continue
        if not _same_values(seen.inputs.get(module), seen.read) or output.numel() == 0:
            continue
        flat = output.reshape(*seen.read.shape[:2], -1)
        for features in _candidates(flat.shape[-1], role, (n, d), shape):
            raw = flat[..., features.to(flat.device)].unflatten(-1, (n, d))
            if _is_turned(raw, wanted):
                own, source = None, module
            elif (between := _norm_of(seen, raw, wanted)) is not None:
                own, source = between
            else:
                continue
            weight, bias = _matrix(module, seen.read.shape[-1])
            weight, bias = weight[:, features], bias[features]
            bias = bias + norm.bias.to(weight) @ weight
            weight = norm.gain.to(weight)[:, None] * weight
            weight = weight - weight.mean(0) if norm.is_centred else weight
            weight = weight.unflatten(-1, (n, d)).transpose(0, 1)  # [head, d_model, d_head]
            at_source = features if own is None else torch.arange(n * d)
            return HeadMap(weight.contiguous(), bias.view(n, d), own, source, at_source)
    raise _refusal(at, f"no linear map of what its attention reads gives its {role}")


def _candidates(
    width: int, role: str, wanted: tuple[int, int], shape: tuple[int, int]
) -> Iterator[Int[Tensor, " feature"]]:
    """The features of an output that one role may have: a run of heads, or some of each group.

    Args:
        wanted: number of heads and their size.
        shape: number of query heads and of key heads.
    """
    n, d = wanted
    if width % d:
        return
    for start in range(width // d - n + 1):
        yield torch.arange(start * d, (start + n) * d)
    heads, key_heads = shape
    group = heads // key_heads
    if width == key_heads * (group + 2) * d:
        by_group = torch.arange(width).view(key_heads, group + 2, d)
        parts = {"query": by_group[:, :group], "key": by_group[:, group], "value": by_group[:, -1]}
        if parts[role].numel() == n * d:
            yield parts[role].reshape(-1)


def _norm_of(seen: _Seen, raw: Tensor, wanted: Tensor) -> tuple[FrozenNorm, nn.Module] | None:
    """The norm of raw queries: it reads them, and gives the wanted ones."""
    for module in seen.at.attention.modules():
        if list(module.children()) or isinstance(module, nn.Linear) or module not in seen.outputs:
            continue
        read, wrote = seen.inputs.get(module), seen.outputs[module]
        if read is None or read.numel() != raw.numel() or wrote.shape != read.shape:
            continue
        for turned in (False, True):  # [batch, head, pos, d_head] in some models
            order = raw.transpose(1, 2) if turned else raw
            if not torch.equal(read.reshape(-1), order.reshape(-1)):
                continue
            normed = wrote.reshape(order.shape)
            if _is_turned(normed.transpose(1, 2) if turned else normed, wanted):
                try:
                    return probe_norm(module, d_model=read.shape[-1]), module
                except ModelError as error:
                    kind = type(module).__name__
                    reason = f"its queries or keys go through a {kind}, which is not a norm"
                    raise _refusal(seen.at, reason) from error
    return None


def _is_turned(
    raw: Float[Tensor, "batch pos head d_head"], wanted: Float[Tensor, "batch pos head d_head"]
) -> bool:
    """Whether one is the other up to a factor: at the first position itself, then its length."""
    raw, wanted = raw.float(), wanted.float()
    first = raw[:, 0]
    factor = (first * wanted[:, 0]).sum() / first.square().sum().clamp_min(1e-30)
    dtype = torch.float32 if raw.dtype == torch.float32 else torch.bfloat16
    if float(factor) <= 0 or not agree(first * factor, wanted[:, 0], dtype=dtype):
        return False
    return agree(raw.norm(dim=-1) * factor, wanted.norm(dim=-1), dtype=dtype)


def _matrix(module: nn.Module, d_model: int) -> tuple[Tensor, Tensor]:
    """Matrix and bias of a linear map of any kind, by calling it."""
    like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
    units = torch.cat([torch.eye(d_model), torch.zeros(1, d_model)]).to(like.dtype)
    units = units if like.device.type == "meta" else units.to(like.device)
    found = module(units).float()
    return found[:-1] - found[-1], found[-1]


def _output(at: HeadLayer) -> Float[Tensor, "head d_head d_model"]:
    found = output_matrix(at).float()
    if at.post_norm is not None:
        found = found - found.mean(-1, keepdim=True) if at.post_norm.is_centred else found
        found = found * at.post_norm.gain.to(found)
    return found * at.multiplier


# Position, measured.


def _turned(weights: LayerWeights, seen: _Seen, known: list[Rotations]) -> Rotations:
    """The maps with which weights and norms give the queries and keys of the run."""
    scaled = weights.scaled(seen.stream)
    plain = weights.query.full(scaled), weights.key.full(scaled)
    d = plain[0].shape[-1]
    for turn in [each for each in known if each.query.shape[-1] == d]:
        if _wrong_part(plain, seen, turn) is None:
            return turn
    turn = _rotations(weights, seen)
    if (wrong := _wrong_part(plain, seen, turn)) is not None:
        raise _refusal(weights.at, f"what was found does not give its {wrong}")
    known.append(turn)
    return turn


def _wrong_part(plain: tuple[Tensor, Tensor], seen: _Seen, turn: Rotations) -> str | None:
    got = (seen.got.query, seen.got.key)
    for name, each, maps, theirs in zip(("queries", "keys"), plain, turn, got, strict=True):
        mine = torch.einsum("bphd,pde->bhpe", each, maps)
        if not _agree(mine, theirs, seen.model):
            return name
    return None


def _agree(mine: Tensor, theirs: Tensor, model: Readable) -> bool:
    """Equal up to rounding; key heads that the model repeats are repeated here."""
    every = mine.repeat_interleave(theirs.shape[1] // mine.shape[1], 1)
    return agree(every, theirs, dtype=model.hf.dtype, slack=3.0)


def _rotations(weights: LayerWeights, seen: _Seen) -> Rotations:
    """The maps of one layer; an attention that cannot be called alone is refused."""
    d = weights.query.weight.shape[-1]
    n = seen.got.query.shape[2]
    rows = max(1, MOST_SCORES // (weights.at.n_heads * n * n))
    query, key = [], []
    for units in torch.eye(d).split(rows):
        try:
            kernel = _replay(weights, seen, units)
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError, KeyError) as error:
            raise _refusal(weights.at, f"its attention cannot run alone ({error})") from error
        for found, part in ((query, kernel.query), (key, kernel.key)):
            if not bool((part == part[:, :1]).all()):
                raise _refusal(weights.at, "position does not act alike on all of its heads")
            found.append(part[:, 0].float())  # [unit, pos, d_head]
    return Rotations(torch.cat(query).transpose(0, 1), torch.cat(key).transpose(0, 1))


def _replay(weights: LayerWeights, seen: _Seen, units: Float[Tensor, "unit d_head"]) -> KernelInput:
    """The kernel's input when every query and key is a unit vector, one of them a row."""
    at, n_rows = weights.at, len(seen.got.query)
    args, kwargs = seen.call
    args = tuple(_rows(each, n_rows, len(units)) for each in args)
    kwargs = {name: _rows(each, n_rows, len(units)) for name, each in kwargs.items()}
    found: list[KernelInput] = []

    def give(_: int, kernel: KernelInput, __: Tensor) -> None:
        found.append(kernel)

    with ExitStack() as stack:
        for part in (weights.query, weights.key):
            put = partial(_put_units, units, part.features)
            stack.enter_context(part.source.register_forward_hook(put))
        stack.enter_context(recorded_kernels(seen.model.hf, [at], give))
        at.attention(*args, **kwargs)
    return found[0]


def _rows(value: Any, n_rows: int, wanted: int) -> Any:
    """An argument of an attention with as many rows as wanted, all like the first."""
    if isinstance(value, tuple | list):
        return type(value)([_rows(each, n_rows, wanted) for each in value])
    if isinstance(value, Tensor) and value.dim() > 1 and len(value) == n_rows:
        return value[:1].expand(wanted, *value.shape[1:]).contiguous()
    return value


def _put_units(units: Tensor, features: Tensor, _: nn.Module, __: Any, output: Tensor) -> Tensor:
    """Every head's part of an output replaced by a unit vector, another one in each row."""
    found = output.clone(memory_format=torch.contiguous_format)
    units = units.to(found)
    d = units.shape[1]
    if found.shape[-1] == d:  # a norm of each head
        found.copy_(units.view(len(units), *[1] * (found.dim() - 2), d))
        return found
    flat = found.view(len(units), -1, found.shape[-1])
    flat[..., features.to(flat.device)] = units.repeat(1, len(features) // d)[:, None]
    return found


def _same(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and a.shape == b.shape and torch.equal(a, b)


def _same_values(a: Tensor | None, b: Tensor) -> bool:
    """Equal, whether or not batch and position are flattened."""
    return a is not None and a.numel() == b.numel() and torch.equal(a.reshape(b.shape), b)
