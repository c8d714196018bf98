"""Attribution: the effect of every head at every position on one prediction, at first order.

For the overview that `saccade.interp.effects.positions` would need thousands of rows for: the
gradient of the target's score at each activation, times the activation minus what replaces it
(attribution patching: Nanda, 2023; Syed et al., 2023, https://arxiv.org/abs/2310.10348).

The effect of a replacement is the integral of that product over the way from the activation to the
replacement, of which the gradient at the text is the first point alone. More points on the way are
nearly exact if each head moves by itself (`saccade lens fidelity --gradients 3`), which takes runs
of its own for each; if all move together, they change each other's gradients. So there is one
gradient here, and what is exact stands beside it: `with_exact_end` measures all heads at the
position of the prediction, where the largest effects are, and `with_agreement` the largest others.

What stays far off is the first token: many heads use it as a sink, and its stream has a form that
the mean of other tokens destroys (`saccade.interp.heads.model.Encoding`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.parts import HeadsValue
from saccade.interp.effects.positions import (
    HeadAt,
    PositionEffect,
    position_effects,
    position_in,
    precise,
)
from saccade.interp.effects.replacement import Ablation
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import Readable, run_base
from saccade.interp.heads.onednn import fast_products
from saccade.interp.heads.taps import HeadLayer
from saccade.interp.lenses.top_tokens import plain

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel

AtHeads = Callable[[HeadLayer, Tensor], Tensor]
"""From a layer and its activations ``[row, pos, head, d_head]`` to those that go on."""


@contextmanager
def graph_of_heads(
    model: Readable, n_rows: int, change: AtHeads
) -> Iterator[dict[int, Float[Tensor, "row pos head d_head"]]]:
    """Runs inside have gradients at the activations of heads; fills the dict by layer.

    No weight gets a gradient: the graph starts at the input embedding.

    Args:
        change: what to put in the place of the activations.
    """
    kept: dict[int, Tensor] = {}
    with ExitStack() as stack:
        embedding = model.hf.get_input_embeddings()
        stack.enter_context(embedding.register_forward_hook(_start))
        for at in model.layers:
            hook = partial(_keep_graph, at, kept, n_rows, change)
            stack.enter_context(at.projection.register_forward_pre_hook(hook))
        stack.enter_context(torch.enable_grad())
        yield kept


def _start(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor:
    return output.detach().requires_grad_()


def _keep_graph(
    at: HeadLayer,
    kept: dict[int, Tensor],
    n_rows: int,
    change: AtHeads,
    _: nn.Module,
    args: tuple[Any, ...],
) -> tuple[Any, ...]:
    flat = args[0]
    # Some models flatten batch and position before they project.
    z = kept[at.index] = change(at, flat.reshape(n_rows, -1, at.n_heads, at.d_head))
    return (z.reshape(flat.shape), *args[1:])


def score_of(
    model: LanguageModel, final: Float[Tensor, "*row d_model"], target: Target
) -> Float[Tensor, "*row"]:
    """The target's score of final states, by the logits of its tokens alone where they will do."""
    if target.against is None:
        return target.score(precise(model.unembedding.logits(final)))
    tokens = torch.tensor([target.token, target.against])
    return Target(0, 1).score(precise(model.unembedding.logits(final, tokens=tokens)))


def unchanged(_: HeadLayer, z: Tensor) -> Tensor:
    """Activations as they are."""
    return z


@dataclass(frozen=True)
class Agreement:
    """The exact effects of the heads with the largest attributions, beside those."""

    heads: tuple[HeadAt, ...]
    attribution: tuple[float, ...]
    exact: tuple[PositionEffect, ...]

    @property
    def correlation(self) -> float | None:
        """Of attribution and exact effect (`correlation_of`)."""
        return correlation_of(self.attribution, [each.on_token for each in self.exact])


def correlation_of(attribution: Sequence[float], exact: Sequence[float]) -> float | None:
    """The correlation; None for less than two heads, or without variation."""
    if len(attribution) < 2:
        return None
    pair = torch.tensor([attribution, exact], dtype=torch.float64)
    found = float(torch.corrcoef(pair)[0, 1])
    return None if found != found else found  # noqa: PLR0124 - not a number


@dataclass(frozen=True)
class Attribution:
    """What every head at every position gives to the score of one prediction, at first order."""

    target: Target
    score: float
    by_layer: Mapping[int, Float[Tensor, "pos head"]]
    """By layer: gradient times activation minus replacement."""
    has_exact_end: bool = False
    """Whether the values at the position of the prediction are exact effects."""
    agreement: Agreement | None = None

    def largest(self, n: int) -> list[HeadAt]:
        """The heads and positions with the largest values, of either sign."""
        cells = [
            (abs(value), HeadAt(layer, head, (position,)))
            for layer, values in self.by_layer.items()
            for position, row in enumerate(values.tolist())
            for head, value in enumerate(row)
        ]
        return [head for _, head in sorted(cells, key=lambda each: -each[0])[:n]]

    def value(self, head: HeadAt) -> float:
        """The attribution of a head, summed over its positions (all: None)."""
        values = self.by_layer[head.layer][:, head.head]
        return float(values.sum() if head.positions is None else values[list(head.positions)].sum())


# As many parameters as a measurement has choices.
def attribute(
    model: LanguageModel,
    ids: Int[Tensor, "batch pos"],
    targets: Sequence[Target] | Target,
    *,
    replacement: Replacement,
    lengths: Sequence[int] | None = None,
    at: int = -1,
) -> tuple[Attribution, ...]:
    """Attribute the score of one prediction of each prompt to heads and positions.

    One forward and one backward pass for all prompts of the batch.

    Args:
        lengths: how many tokens of each row are the prompt; the rest is padding.
        at: the position of the prediction, from the start or the end of each prompt.
    """
    n = [ids.shape[1]] * len(ids) if lengths is None else list(lengths)
    chosen = list(targets) if isinstance(targets, Sequence) else [targets] * len(ids)
    places = torch.tensor([position_in(at, each) for each in n])
    with graph_of_heads(model, len(ids), unchanged) as z:
        final = run_base(model.hf, ids)
        ends = final[torch.arange(len(ids)), places.to(final.device)]
        scores = [score_of(model, end, each) for end, each in zip(ends, chosen, strict=True)]
        # Rows do not depend on each other: one backward pass is that of each of them.
        found = torch.autograd.grad(torch.stack(scores).sum(), list(z.values()))
    parts: list[dict[int, Tensor]] = [{} for _ in n]
    for (layer, each), gradient in zip(z.items(), found, strict=True):
        away = each.detach() - replacement.heads[layer].to(each)
        along = (gradient * away).sum(-1).cpu()  # [batch, pos, head]
        for row, length in enumerate(n):
            parts[row][layer] = along[row, :length]
    rows = zip(chosen, scores, parts, strict=True)
    return tuple(Attribution(target, float(score.detach()), part) for target, score, part in rows)


@torch.no_grad()
def with_exact_end(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    attribution: Attribution,
    *,
    replacement: Replacement,
) -> Attribution:
    """The attribution with the exact effects of all heads at the last position in its place.

    For a prediction after the last token; copies of that token share the prompt (`run_copies`).
    """
    values = replacement.at_last().heads
    cells = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    changes = [HeadsValue(layer, (head,), values[layer][[head]]) for layer, head in cells]
    run = run_copies(model, ids, changes)
    with fast_products():
        exact = attribution.score - score_of(model, run.states[0], attribution.target)
    by_layer = {layer: each.clone() for layer, each in attribution.by_layer.items()}
    for (layer, head), value in zip(cells, exact.tolist(), strict=True):
        by_layer[layer][-1, head] = value
    return replace(attribution, by_layer=by_layer, has_exact_end=True)


def with_agreement(
    model: LanguageModel,
    ids: Int[Tensor, "1 pos"],
    attribution: Attribution,
    *,
    replacement: Replacement,
    at: int = -1,
    n: int = 16,
) -> Attribution:
    """The attribution with the exact effects of its ``n`` largest heads and positions."""
    heads = attribution.largest(n)
    exact = position_effects(
        model, ids, heads, replacement=replacement, target=attribution.target, at=at
    )
    values = tuple(attribution.value(head) for head in heads)
    agreement = Agreement(tuple(heads), values, tuple(exact[head] for head in heads))
    return replace(attribution, agreement=agreement)


# The map of one prediction, for JSON.


@dataclass(frozen=True, slots=True)
class AttributionRow:
    """One layer: for each position, the attribution of each head."""

    layer: int
    values: list[list[float]]


@dataclass(frozen=True, slots=True)
class ExactCell:
    """One head at one position: its attribution beside its exact effect."""

    layer: int
    head: int
    position: int
    attribution: float
    exact: float


@dataclass(frozen=True, kw_only=True)
class AttributionMap:
    """What every head at every position gives to the logit of one token, at first order."""

    tokens: list[str]
    position: int
    """Where the prediction is made; at this position the values are exact."""
    token: str
    against: str | None
    replaced_by: Ablation
    score: float
    rows: tuple[AttributionRow, ...]
    checked: tuple[ExactCell, ...]
    """The largest, measured."""
    correlation: float | None
    """Of attribution and exact effect over those."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


def attribution_map(
    model: LanguageModel, ids: Int[Tensor, "1 pos"], target: Target, *, replacement: Replacement
) -> AttributionMap:
    """The map of the prediction after the last token."""
    (found,) = attribute(model, ids, target, replacement=replacement)
    found = with_exact_end(model, ids, found, replacement=replacement)
    found = with_agreement(model, ids, found, replacement=replacement)
    agreement = found.agreement
    assert agreement is not None, "it was measured in the line above"
    token, against = target.names(model)
    last = ids.shape[1] - 1
    return AttributionMap(
        tokens=model.tokens(ids[0]),
        position=last,
        token=token,
        against=against,
        replaced_by=replacement.by,
        score=found.score,
        rows=tuple(AttributionRow(layer, v.tolist()) for layer, v in found.by_layer.items()),
        checked=tuple(
            ExactCell(head.layer, head.head, (head.positions or (last,))[0], value, exact.on_token)
            for head, value, exact in zip(
                agreement.heads, agreement.attribution, agreement.exact, strict=True
            )
        ),
        correlation=agreement.correlation,
    )
