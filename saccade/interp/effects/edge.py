"""One edge of attention: why a query gives a key its score, split over what both were made of.

The stream that a layer reads is a sum: the embedding, what each earlier head wrote, what each
feed-forward part and bias added. With the scales of the norms frozen at their values in the run
(Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits") a query is the sum of
what its weights make of these parts, a key likewise, and the score, before mask, soft-cap and
softmax, is the sum over all pairs of a part of the query and a part of the key. Nothing is
estimated: the split must give back the score of the model's own kernel, or the model is refused.

A part of a score is not its effect: without it norms would scale the others up. And much of a score
is common to all keys of a query, which the softmax takes away: with another key given, the same is
said of the difference of the two scores, which is the log-ratio of the two attention weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.interp.effects.parts import besides_attention
from saccade.interp.effects.positions import position_in
from saccade.interp.heads.attention_weights import KernelInput, recorded_kernels
from saccade.interp.heads.capture import (
    agree,
    head_outputs,
    on_input,
    on_output,
    projection_bias,
    run_through,
)
from saccade.interp.heads.head_weights import HeadMap, LayerWeights, head_weights, rotations
from saccade.interp.heads.taps import HeadLayer
from saccade.interp.lenses.top_tokens import plain

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel

PAIRS = 50  # in JSON


class PartScore(NamedTuple):
    """A part of the query or of the key, and its share of the score."""

    name: str
    """``9.8`` is a head, ``9.feed-forward`` all that a block adds besides its attention, ``9.bias``
    that of an attention's output; ``bias`` is that of queries and keys."""
    value: float


class PairScore(NamedTuple):
    """A part of the query, a part of the key, and what both give to the score."""

    query: str
    key: str
    value: float


@dataclass(frozen=True, kw_only=True)
class EdgeScore:
    """The score of one edge, split; or of one key above another."""

    model: str
    tokens: tuple[str, ...]
    layer: int
    head: int
    query: int
    """Its position."""
    key: int
    against: int | None
    """The position of the other key."""
    score: float
    """Before mask, soft-cap and softmax; minus that of the other key, if there is one."""
    weight: float
    against_weight: float | None
    names: tuple[str, ...]
    """Of the parts."""
    matrix: Float[Tensor, "query_part key_part"]
    """It sums to the score."""
    by_distance: tuple[float, ...]
    """The score of the same content at distance 0, 1, ... up to the start of the text."""

    @property
    def query_parts(self) -> list[PartScore]:
        """What each part of the query gives with the whole key, the largest first."""
        return self._ordered(self.matrix.sum(1))

    @property
    def key_parts(self) -> list[PartScore]:
        """What each part of the key gives with the whole query, the largest first."""
        return self._ordered(self.matrix.sum(0))

    def pairs(self, n: int) -> list[PairScore]:
        """The largest pairs, of either sign."""
        best = self.matrix.abs().flatten().topk(min(n, self.matrix.numel())).indices
        places = [divmod(place, len(self.names)) for place in best.tolist()]
        return [
            PairScore(self.names[a], self.names[b], float(self.matrix[a, b])) for a, b in places
        ]

    @property
    def by_position(self) -> float:
        """The score at this distance minus its mean over all distances: what position gives.

        Of rotary position, that is; what a model adds to its embeddings is a part of them.
        """
        mean = sum(self.by_distance) / len(self.by_distance)
        return self.by_distance[self.query - self.key] - mean

    def to_dict(self) -> dict[str, Any]:
        """For JSON: all parts, and the largest pairs."""
        names = ("model", "tokens", "layer", "head", "query", "key", "against", "score", "weight")
        found = {name: plain(getattr(self, name)) for name in names}
        return found | {
            "against_weight": plain(self.against_weight),
            "query_parts": [plain(each._asdict()) for each in self.query_parts],
            "key_parts": [plain(each._asdict()) for each in self.key_parts],
            "pairs": [plain(each._asdict()) for each in self.pairs(PAIRS)],
            "by_distance": plain(self.by_distance),
            "by_position": plain(self.by_position),
        }

    def _ordered(self, values: Float[Tensor, " part"]) -> list[PartScore]:
        parts = map(PartScore, self.names, values.tolist())
        return sorted(parts, key=lambda each: -abs(each.value))


# As many parameters as an edge has ends.
@torch.no_grad()
def edge_score(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    head: tuple[int, int],
    *,
    query: int = -1,
    key: int,
    against: int | None = None,
) -> EdgeScore:
    """Split the score of one key, for one query of one head.

    Args:
        head: (layer, head).
        query: position of the query, from the start or the end.
        key: position of the key.
        against: position of another key: its score is subtracted.

    Raises:
        ModelError: the weights of the layer are not found, its stream is not a sum, or the parts do
            not give the model's own score.
    """
    model.check_head(*head)
    places = _places(ids.shape[1], query, key, against)
    at = model.layer(head[0])
    for earlier in model.layers:
        if earlier.index < at.index and not earlier.reaches_stream:
            raise ModelError(
                f"{earlier.path} writes into a stream that its block norms again: what "
                f"{at.path} reads is not a sum",
                hint="attention weights can be read; they cannot be split over parts",
            )
    weights = head_weights(model, [at.index])[at.index]
    turn = rotations(model, [weights], ids)[at.index]
    run = _Run(model, at, places)
    run.go(ids)
    names, parts = run.parts(ids)
    queries = _projected(weights, weights.query, head[1], parts[0], run.entered[at.index][0])
    keys = [
        _projected(weights, weights.key, weights.key_head(head[1]), part, stream)
        for part, stream in zip(parts[1:], run.entered[at.index][1:], strict=True)
    ]
    turned = queries @ turn.query[places[0]]  # [part, d_head]
    at_keys = [each @ turn.key[place] for each, place in zip(keys, places[1:], strict=True)]
    scaling = run.kernel.scaling
    matrices = [turned @ each.mT * scaling for each in at_keys]
    own = [run.own_score(head[1], place) for place in places[1:]]
    ours = torch.stack([each.sum() for each in matrices])
    if not agree(ours, torch.tensor(own), dtype=model.hf.dtype, slack=3.0):
        raise ModelError(
            f"the parts of {at.path} do not add up to its score: {float(ours[0]):.4g}, not "
            f"{own[0]:.4g}",
            hint="this model's scores cannot be split; please report the model type",
        )
    n = places[0] + 1
    whole = turned.sum(0) @ (keys[0].sum(0) @ turn.key[:n]).mT * scaling  # [key_pos]
    shown = run.weights[head[1], places[0]]
    return EdgeScore(
        model=model.name,
        tokens=tuple(model.tokens(ids[0])) if model.tokenizer is not None else (),
        layer=head[0],
        head=head[1],
        query=places[0],
        key=places[1],
        against=places[2] if len(places) > 2 else None,
        score=own[0] - sum(own[1:]),
        weight=float(shown[places[1]]),
        against_weight=float(shown[places[2]]) if len(places) > 2 else None,
        names=(*names, "bias"),
        matrix=matrices[0] - sum(matrices[1:]),
        by_distance=tuple(whole.flip(0).tolist()),
    )


def _places(n: int, query: int, key: int, against: int | None) -> list[int]:
    """Positions of the query, the key, and the other key if there is one."""
    places = [position_in(each, n) for each in (query, key, against) if each is not None]
    for place in places[1:]:
        if place > places[0]:
            raise UsageError(
                f"the key at position {place} comes after the query at position {places[0]}",
                hint=f"give a key from 0 to {places[0]}",
            )
    if len(places) > 2 and places[1] == places[2]:
        raise UsageError(
            f"both keys are at position {places[1]}", hint="give two different positions"
        )
    return places


def _projected(
    weights: LayerWeights,
    part_map: HeadMap,
    head: int,
    parts: Float[Tensor, "part d_model"],
    stream: Float[Tensor, " d_model"],
) -> Float[Tensor, "part_and_bias d_head"]:
    """What the parts of a stream become in a query or key before position; then their bias."""
    raw = part_map.linear(parts * weights.norm.scale(stream).to(parts))  # [part, head, d_head]
    raw = torch.cat([raw, part_map.bias[None]])
    whole = part_map.raw(weights.scaled(stream))
    found = part_map.frozen(raw, whole[None])[:, head]
    found[-1] += part_map.offset[head]
    return found


class _Run:
    """What one run shows at a few positions: streams and activations of the earlier layers."""

    def __init__(self, model: LanguageModel, at: HeadLayer, places: Sequence[int]) -> None:
        self.model, self.at, self.places = model, at, list(places)
        self.entered: dict[int, Float[Tensor, "place d_model"]] = {}
        self.left: dict[int, Tensor] = {}
        self.z: dict[int, Tensor] = {}
        self.embedded: dict[int, Tensor] = {}
        self.n = 0

    def go(self, ids: Int[Tensor, "1 pos"]) -> None:
        """Run up to the layer."""
        self.n = ids.shape[1]
        with ExitStack() as stack:
            embedding = self.model.hf.get_input_embeddings()
            stack.enter_context(on_output(embedding, partial(self._keep, self.embedded, 0)))
            for at in self.model.layers:
                if at.index <= self.at.index:
                    keep = partial(self._keep, self.entered, at.index)
                    stack.enter_context(on_input(at.block, keep))
                if at.index < self.at.index:
                    keep = partial(self._keep, self.left, at.index)
                    stack.enter_context(on_output(at.block, keep))
                    keep = partial(self._keep, self.z, at.index)
                    stack.enter_context(on_input(at.projection, keep))
            stack.enter_context(recorded_kernels(self.model.hf, [self.at], self._keep_kernel))
            run_through(self.model.hf, ids, self.at.block)

    def _keep(self, into: dict[int, Tensor], layer: int, tensor: Tensor) -> None:
        # Some models flatten batch and position; here there is one row.
        into[layer] = tensor.reshape(self.n, -1)[self.places].clone()

    def _keep_kernel(self, _: int, kernel: KernelInput, weights: Tensor) -> None:
        self.kernel, self.weights = kernel, weights[0].float().cpu()

    def own_score(self, head: int, key: int) -> float:
        """Of the model's kernel."""
        group = self.kernel.query.shape[1] // self.kernel.key.shape[1]
        pair = self.kernel.query[0, head, self.places[0]], self.kernel.key[0, head // group, key]
        return float(pair[0].float() @ pair[1].float()) * self.kernel.scaling

    def parts(
        self, ids: Int[Tensor, "1 pos"]
    ) -> tuple[list[str], Float[Tensor, "place part d_model"]]:
        """The parts of the stream that the layer reads; those of zeros are left out."""
        first = self.model.layers[0].index
        names, parts = self._embeddings(ids, first)
        last = self.entered[first]
        for at in self.model.layers:
            if at.index >= self.at.index:
                break
            self._add(names, parts, f"before {at.index}", self.entered[at.index].float() - last)
            for name, part in self._of_block(at):
                self._add(names, parts, name, part)
            last = self.left[at.index].float()
        entered = self.entered[self.at.index].float()
        self._add(names, parts, f"before {self.at.index}", entered - last)
        return names, torch.stack(parts, 1)

    @staticmethod
    def _add(names: list[str], parts: list[Tensor], name: str, part: Tensor) -> None:
        if bool(part.any()):
            names.append(name)
            parts.append(part.float().cpu())

    def _of_block(self, at: HeadLayer) -> list[tuple[str, Float[Tensor, "place d_model"]]]:
        z = self.z[at.index]
        heads = head_outputs(at, z.unflatten(-1, (at.n_heads, at.d_head)))
        wrote, bias = at.projection(z), projection_bias(at, z)[None]
        if at.post_norm is not None:
            heads = at.post_norm.frozen(heads, wrote[:, None])
            bias = at.post_norm.frozen(bias.expand_as(wrote), wrote) + at.post_norm.bias
        bias = bias.expand_as(wrote).float() * at.multiplier
        entered, left = self.entered[at.index], self.left[at.index]
        besides = besides_attention(at, entered.float(), wrote, left.float())
        named = [
            (f"{at.index}.{head}", part * at.multiplier)
            for head, part in enumerate(heads.float().unbind(1))
        ]
        return [*named, (f"{at.index}.bias", bias), (f"{at.index}.feed-forward", besides)]

    def _embeddings(
        self, ids: Int[Tensor, "1 pos"], first: int
    ) -> tuple[list[str], list[Float[Tensor, "place d_model"]]]:
        """What enters the first layer: the token, and its position where the model adds one."""
        entered, own = self.entered[first].float(), self.embedded[0].float()
        if first > 0:
            return [f"before {first}"], [entered.cpu()]
        if own.shape == entered.shape:
            own = own.to(entered)
            factor = float((own * entered).sum() / own.square().sum().clamp_min(1e-30))
            other = _Run(self.model, self.model.layers[0], self.places)
            other.go(ids.roll(1, 1).flip(1))
            position = entered - own
            same = other.entered[first].float() - other.embedded[0].float().to(entered)
            # It is position if other tokens have the same there.
            if not agree(own * factor, entered, dtype=self.model.hf.dtype) and agree(
                position, same, dtype=self.model.hf.dtype
            ):
                return ["embedding", "position"], [own.cpu(), position.cpu()]
        return ["embedding"], [entered.cpu()]
