"""Flow: the graph from tokens through heads to one prediction, at first order.

Nodes are heads at positions. What a head gives to the target's score along all paths (its
attribution) is the sum of what it gives directly (through feed-forward parts, but no other head)
and through each later head (`saccade.interp.effects.paths`); so what is not drawn can be said:
`FlowNode.elsewhere` is what goes through heads and edges that are not in the graph.

The edges from tokens are another split of the same attribution: by where the head attends. A token
gives its attention weight times the gradient times (its value minus the head's replacement), which
sums over the tokens to the attribution. For models whose values cannot be seen it gets the share of
its attention weight. The first token is often a sink: what it gives is what the head gives by not
attending to anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.interp.effects.attribution import correlation_of
from saccade.interp.effects.joined_pass import uses_interface, wrapped_attention
from saccade.interp.effects.paths import PathGradients
from saccade.interp.effects.positions import HeadAt, PositionEffect, position_effects, position_in
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import agree, capture
from saccade.interp.lenses.top_tokens import plain

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel

MOST_NODES = 40
# Of the largest edge to the prediction: below it a graph of 20 tokens has hundreds of edges.
LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A head at a position."""

    name: str
    """``9.6@4`` is head 6 of layer 9 at position 4."""
    layer: int
    head: int
    position: int
    attribution: float
    """What it gives to the score along all paths, at first order."""
    direct: float
    """The part of it that goes through no other head."""
    elsewhere: float
    """The part of it that goes through heads or edges that are not in the graph."""
    exact: float
    """How far the score falls when the head is replaced there: measured."""


@dataclass(frozen=True, slots=True)
class FlowEdge:
    """What one node gives to the score through another; names of nodes, tokens or ``prediction``.

    ``token@4`` is the token at position 4.
    """

    source: str
    to: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The graph of one prediction."""

    model: str
    tokens: tuple[str, ...]
    position: int
    """Where the prediction is made."""
    token: str
    against: str | None
    score: float
    threshold: float
    """Edges below this share of the largest one to the prediction are left out."""
    kept: float
    """The share that the edges from heads to the prediction have of the sum, over all heads, of
    what they give directly; both of absolute values."""
    agreement: float | None
    """The correlation of attribution and exact effect over the nodes."""
    nodes: tuple[FlowNode, ...]
    edges: tuple[FlowEdge, ...]
    """From tokens to heads, from heads to heads, and from heads to the prediction."""

    def pruned(self, threshold: float) -> Flow:
        """The graph with a higher threshold: heads that no longer reach the prediction are gone."""
        largest = max((abs(e.value) for e in self.edges if e.to == "prediction"), default=0.0)
        strong = [edge for edge in self.edges if abs(edge.value) >= threshold * largest]
        reached = {"prediction"}
        for node in sorted(self.nodes, key=lambda each: -each.layer):
            if any(edge.source == node.name and edge.to in reached for edge in strong):
                reached.add(node.name)
        nodes = [node for node in self.nodes if node.name in reached]
        names = {node.name: node for node in nodes}
        edges = [
            edge
            for edge in strong
            if edge.to in reached and (edge.source in names or edge.source.startswith("token@"))
        ]
        drawn = set(edges)
        lost = {node.name: 0.0 for node in nodes}  # what goes through edges that are gone
        for edge in self.edges:
            if edge.source in lost and edge.to != "prediction" and edge not in drawn:
                lost[edge.source] += edge.value
        before = sum(abs(e.value) for e in self.edges if e.to == "prediction")
        after = sum(abs(e.value) for e in edges if e.to == "prediction")
        return replace(
            self,
            threshold=max(threshold, self.threshold),
            kept=self.kept * after / before if before else 0.0,
            agreement=_agreement(nodes),
            nodes=tuple(replace(n, elsewhere=n.elsewhere + lost[n.name]) for n in nodes),
            edges=tuple(edges),
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON, numbers to six digits."""
        return plain(self)


def _agreement(nodes: Sequence[FlowNode]) -> float | None:
    return correlation_of([n.attribution for n in nodes], [n.exact for n in nodes])


# As many parameters as a measurement has choices.
def find_flow(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    target: Target,
    *,
    replacement: Replacement,
    at: int = -1,
    threshold: float = LEAST_SHARE,
) -> Flow:
    """The graph of one prediction: back from it, head by head, the strongest first.

    Args:
        threshold: the least share of the largest edge to the prediction. `Flow.pruned` applies a
            higher one at once.
    """
    place = position_in(at, ids.shape[1])
    paths = PathGradients.record(model, ids, target, replacement=replacement, at=place)
    direct = _cells(paths.direct())
    attribution = _cells(paths.attribution)
    least = threshold * max(map(abs, direct.values()))
    into = _into_heads(paths, direct, least)
    nodes = list(into)
    edges = [
        FlowEdge(_name(head), "prediction", direct[head])
        for head in nodes
        if abs(direct[head]) >= least
    ]
    edges += [
        FlowEdge(_name(source), _name(head), value)
        for head, found in into.items()
        for source, value in found.items()
        if source in into
    ]
    for head, found in _from_tokens(model, ids, paths, nodes, replacement).items():
        edges += [
            FlowEdge(f"token@{s}", _name(head), v) for s, v in enumerate(found) if abs(v) >= least
        ]
    exact = _exact(model, ids, nodes, replacement=replacement, target=target, at=place)
    through = {head: sum(found.get(head, 0.0) for found in into.values()) for head in nodes}
    whole = sum(map(abs, direct.values()))
    found = [
        FlowNode(
            name=_name(head),
            layer=head.layer,
            head=head.head,
            position=_at(head),
            attribution=attribution[head],
            direct=direct[head],
            elsewhere=attribution[head] - direct[head] - through[head],
            exact=exact[head].on_token,
        )
        for head in sorted(nodes)
    ]
    token, against = target.names(model)
    return Flow(
        model=model.name,
        tokens=tuple(model.tokens(ids[0])),
        position=place,
        token=token,
        against=against,
        score=paths.score,
        threshold=threshold,
        kept=sum(abs(e.value) for e in edges if e.to == "prediction") / whole if whole else 0.0,
        agreement=_agreement(found),
        nodes=tuple(found),
        edges=tuple(sorted(edges, key=lambda each: -abs(each.value))),
    )


def _at(head: HeadAt) -> int:
    assert head.positions is not None, "a node is at one position"
    return head.positions[0]


def _name(head: HeadAt) -> str:
    return f"{head.layer}.{head.head}@{_at(head)}"


def _cells(by_layer: Mapping[int, Float[Tensor, "pos head"]]) -> dict[HeadAt, float]:
    return {
        HeadAt(layer, head, (position,)): value
        for layer, values in by_layer.items()
        for position, row in enumerate(values.tolist())
        for head, value in enumerate(row)
    }


def _into_heads(
    paths: PathGradients, direct: Mapping[HeadAt, float], least: float
) -> dict[HeadAt, dict[HeadAt, float]]:
    """By node: the edges into it from earlier heads. The heads with the largest edges come first.

    A head's own edges are found when it has become a node: so a graph of 40 nodes takes as many
    backward passes through the layers before them, and no more.
    """
    waiting = {head: abs(value) for head, value in direct.items() if abs(value) >= least}
    into: dict[HeadAt, dict[HeadAt, float]] = {}
    while waiting and len(into) < MOST_NODES:
        head = max(waiting, key=lambda each: waiting[each])
        del waiting[head]
        found = _cells(paths.through(head.layer, head.head, _at(head)))
        into[head] = {source: value for source, value in found.items() if abs(value) >= least}
        for source, value in into[head].items():
            if source not in into:
                waiting[source] = max(waiting.get(source, 0.0), abs(value))
    return into


def _exact(
    model: LanguageModel,
    ids: Tensor,
    heads: list[HeadAt],
    *,
    replacement: Replacement,
    target: Target,
    at: int,
) -> dict[HeadAt, PositionEffect]:
    return position_effects(model, ids, heads, replacement=replacement, target=target, at=at)


def _from_tokens(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    paths: PathGradients,
    heads: list[HeadAt],
    replacement: Replacement,
) -> dict[HeadAt, list[float]]:
    """By node: what each token gives to it by being attended to."""
    layers = sorted({head.layer for head in heads})
    values = _values(model, ids) if uses_interface(model) else {}
    run = capture(model, ids, layers=layers, attention=layers)
    found = {}
    for head in heads:
        weights = run.attention[head.layer][0, head.head, _at(head)].float()  # [pos]
        gradient = paths.gradient[head.layer][_at(head), head.head].float()
        z = run.z[head.layer][0, _at(head), head.head].float()
        given = weights * paths.attribution[head.layer][_at(head), head.head]
        if head.layer in values:
            each = values[head.layer][head.head].float()  # [pos, d_head]
            if agree(weights @ each, z, dtype=model.hf.dtype):
                instead = replacement.heads[head.layer].to(z)
                instead = instead[..., head.head, :]
                instead = instead if instead.dim() == 1 else instead[_at(head)]
                given = weights * ((each - instead) @ gradient)
        found[head] = given.tolist()
    return found


@torch.no_grad()
def _values(model: LanguageModel, ids: Tensor) -> dict[int, Float[Tensor, "head pos d_head"]]:
    """By layer: the values that each head reads."""
    layer_of = {id(at.attention): at for at in model.layers}
    kept: dict[int, Tensor] = {}

    def keep(
        own: Any, module: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
    ) -> Any:
        at = layer_of[id(module)]
        # One value head serves a group of heads.
        kept[at.index] = value[0].repeat_interleave(at.n_heads // value.shape[1], 0)
        return own(module, query, key, value, *rest, **named)

    with wrapped_attention(model, keep):
        capture(model, ids, layers=[])
    return kept
