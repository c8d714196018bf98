"""Composition: which heads read what other heads write, from the weights alone, and measured.

Elhage et al., 2021, "A Mathematical Framework for Transformer Circuits", section "Composition":
``|| A B ||_F / (|| A ||_F || B ||_F)``, where B is what the earlier head writes (its W_OV) and A
how the later one reads: W_QK from the side of the queries (Q-composition) or of the keys (K), or
W_OV (V). Norms are folded in (`saccade.interp.heads.head_weights`) up to their scale, which
cancels.

Unlike the paper, the baseline is exact: over random rotations of the stream between the two heads
the mean of the square is 1 / d_model, whatever their singular values; the paper samples matrices of
the same shape. What the weights allow need not happen: `measured_paths` measures, by path patching,
how much of it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.errors import ModelError, UsageError
from saccade.interp.effects.paths import path_effects
from saccade.interp.effects.positions import HeadAt
from saccade.interp.heads.head_weights import LayerWeights, head_weights
from saccade.interp.heads.onednn import product
from saccade.interp.studies.fidelity.geometry import BOOTSTRAPS, Estimate, spearman

if TYPE_CHECKING:
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import LanguageModel

Site = tuple[int, int]
Kind = Literal["query", "key", "value"]
KINDS: tuple[Kind, ...] = ("query", "key", "value")


class ComposedPair(NamedTuple):
    """Two heads, the later of which reads what the earlier one writes."""

    source: Site
    reader: Site
    kind: Kind
    """What of the later head the earlier one's output goes into."""
    score: float
    above: float
    """The score minus the baseline."""


@dataclass(frozen=True)
class Composition:
    """The composition of all pairs of some heads."""

    sites: Sequence[Site]
    """(layer, head), in order of depth."""
    scores: Float[Tensor, "3 head head"]
    """By kind (query, key, value), source and reader; 0 where the source is not earlier."""
    baseline: float
    """The root mean square of the score over random rotations of the stream."""

    def largest(self, n: int = 20, *, head: Site | None = None) -> list[ComposedPair]:
        """The pairs with the largest scores, of all kinds; of one head, if one is given."""
        scores = self.scores.float().clone()
        if head is not None:
            at = self._index(head)
            others = torch.arange(len(self.sites)) != at
            scores[:, others[:, None] & others] = 0
        best = scores.flatten().topk(min(n, scores.numel()))
        found = []
        for value, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            kind, rest = divmod(place, len(self.sites) ** 2)
            source, reader = divmod(rest, len(self.sites))
            if value > 0:
                found.append(self._pair(KINDS[kind], source, reader, value))
        return found

    def strongest(self, source: Site, reader: Site) -> ComposedPair:
        """The kind of composition of two heads that has the largest score."""
        at = self._index(source), self._index(reader)
        scores = self.scores[:, at[0], at[1]].float()
        kind = int(scores.argmax())
        return self._pair(KINDS[kind], *at, float(scores[kind]))

    def _pair(self, kind: Kind, source: int, reader: int, score: float) -> ComposedPair:
        ends = self.sites[source], self.sites[reader]
        return ComposedPair(*ends, kind, score, score - self.baseline)

    @cached_property
    def _places(self) -> Mapping[Site, int]:
        return {site: at for at, site in enumerate(self.sites)}

    def _index(self, site: Site) -> int:
        if site not in self._places:
            raise UsageError(
                f"no composition of head {site[0]}.{site[1]}: it is of {len(self.sites)} heads, "
                f"{self.sites[0]} to {self.sites[-1]}",
                hint="give one of them, or measure composition for all heads",
            )
        return self._places[site]


@torch.no_grad()
def head_composition(
    model: LanguageModel,
    sites: Sequence[Site] | None = None,
    *,
    weights: Mapping[int, LayerWeights] | None = None,
) -> Composition:
    """Q-, K- and V-composition between all pairs of heads of different layers.

    No matrix of d_model x d_model is formed: an orthonormal factor of a matrix at either end does
    not change the norm, so that a QR decomposition leaves one product of d_head x d_model and
    d_model x d_head for each pair. The pairs of two layers are one product.

    Args:
        sites: (layer, head); of all heads by default.
        weights: those of `head_weights`, if they are known.

    Raises:
        ModelError: the weights of single heads are not found, or do not reach the stream.
    """
    if sites is None:
        sites = [(at.index, head) for at in model.layers for head in range(at.n_heads)]
    layers = sorted({layer for layer, _ in sites})
    if weights is None:
        weights = head_weights(model, layers)
    for layer in layers:
        _refuse_normed(weights[layer])
    heads = {layer: [head for each, head in sites if each == layer] for layer in layers}
    start = {layer: next(i for i, site in enumerate(sites) if site[0] == layer) for layer in layers}
    scores = torch.zeros(len(KINDS), len(sites), len(sites))
    writes = {layer: _writes(weights[layer], heads[layer]) for layer in layers}
    for layer in layers:
        columns = slice(start[layer], start[layer] + len(heads[layer]))
        for kind, reads in enumerate(_reads(weights[layer], heads[layer])):
            for earlier in [each for each in layers if each < layer]:
                rows = slice(start[earlier], start[earlier] + len(heads[earlier]))
                scores[kind, rows, columns] = _overlap(writes[earlier], reads)
    return Composition(list(sites), scores, model.d_model**-0.5)


def _refuse_normed(weights: LayerWeights) -> None:
    if weights.at.reaches_stream:
        return
    raise ModelError(
        f"{weights.at.path} writes into a stream that its block norms again: what later heads read "
        "is not a sum of what heads write",
        hint="composition needs a model whose stream is a sum",
    )


def _writes(weights: LayerWeights, heads: list[int]) -> Float[Tensor, "head d_head d_model"]:
    """W_OV of each head, turned so that its rows are few; of length 1."""
    value = weights.of_heads(weights.value)[heads]
    return _unit(_upper(value) @ weights.output[heads].to(value))


def _reads(
    weights: LayerWeights, heads: list[int]
) -> tuple[Float[Tensor, "head d_head d_model"], ...]:
    """How each head reads queries, keys and values, a row for each thing it reads; of length 1."""
    query, key, value = (
        weights.of_heads(part)[heads] for part in (weights.query, weights.key, weights.value)
    )
    output = weights.output[heads].to(value)
    return (
        _unit(_upper(key) @ query.mT),
        _unit(_upper(query) @ key.mT),
        _unit(_upper(output.mT) @ value.mT),
    )


def _upper(matrix: Float[Tensor, "head d_model d_head"]) -> Float[Tensor, "head d_head d_head"]:
    return torch.linalg.qr(matrix, mode="r").R


def _unit(matrix: Float[Tensor, "head a b"]) -> Float[Tensor, "head a b"]:
    """Of Frobenius norm 1; a head of zeros stays."""
    return matrix / matrix.flatten(1).norm(dim=1).clamp_min(1e-30)[:, None, None]


def _overlap(
    writes: Float[Tensor, "source d_head d_model"], reads: Float[Tensor, "reader d_other d_model"]
) -> Float[Tensor, "source reader"]:
    rows = reads.flatten(0, 1).to(writes.device)
    found = product(writes.flatten(0, 1), rows)  # [source * d_head, reader * d_other]
    found = found.view(len(writes), writes.shape[1], len(reads), -1)
    return found.square().sum((1, 3)).sqrt().cpu()


# Measured: path patching at positions of a text.


class MeasuredPair(NamedTuple):
    """A pair of heads, its composition, and the effect of the path between them."""

    source: Site
    reader: Site
    kind: Kind
    score: float
    kl: float
    """Mean KL of the prediction when the source is replaced, at all positions, for the reader
    alone."""
    is_control: bool
    """Drawn at random, not for its score."""


@dataclass(frozen=True, kw_only=True)
class PathTest:
    """How far composition from weights predicts the effects of paths."""

    pairs: tuple[MeasuredPair, ...]
    n_positions: int
    rank_correlation: Estimate
    """Of score and KL, over all pairs; its interval is over draws of pairs."""
    largest_kl: Estimate
    """Mean over the pairs with the largest scores."""
    control_kl: Estimate
    """Mean over the pairs drawn at random."""

    def to_dict(self) -> dict[str, Any]:
        """For a table of an atlas."""
        found = asdict(self)
        found["pairs"] = [pair._asdict() for pair in self.pairs]
        for name in ("rank_correlation", "largest_kl", "control_kl"):
            found[name] = list(getattr(self, name))
        return found


# As many parameters as a measurement has choices.
@torch.no_grad()
def measured_paths(
    model: LanguageModel,
    composition: Composition,
    windows: Int[Tensor, "window pos"],
    places: Sequence[tuple[int, int]],
    *,
    replacement: Replacement,
    n_pairs: int = 12,
    seed: int = 0,
) -> PathTest:
    """Measure the paths of the pairs that compose most, beside as many pairs drawn at random.

    The source is replaced at all positions of the text, heads between are kept, and the reader
    changes at the measured position alone (`saccade.interp.effects.paths`): queries, keys and
    values together, as no path separates them.

    Args:
        places: (window, position) of the predictions.
        n_pairs: pairs of each group.
    """
    if not places:
        raise UsageError("there is no position to measure paths at", hint="give at least one")
    largest = {
        (pair.source, pair.reader): pair for pair in composition.largest(len(KINDS) * n_pairs)
    }
    chosen = list(largest)[:n_pairs]
    control = _random_pairs(composition, n_pairs, without=set(chosen), seed=seed)
    total = dict.fromkeys([*chosen, *control], 0.0)
    for window, position in places:
        ids = windows[window : window + 1, : position + 1].to(model.device)
        for reader in dict.fromkeys(reader for _, reader in total):
            sources = [HeadAt(*source) for source, each in total if each == reader]
            through = HeadAt(*reader, (position,))
            found = path_effects(model, ids, sources, through, replacement=replacement)
            for source, effect in found.items():
                total[(source.layer, source.head), reader] += effect.kl / len(places)
    pairs = tuple(
        MeasuredPair(*_named(composition.strongest(*ends)), kl, ends not in chosen)
        for ends, kl in total.items()
    )
    return _path_test(pairs, len(places), seed)


def _named(pair: ComposedPair) -> tuple[Site, Site, Kind, float]:
    return pair.source, pair.reader, pair.kind, pair.score


def _random_pairs(
    composition: Composition, n: int, *, without: set[tuple[Site, Site]], seed: int
) -> list[tuple[Site, Site]]:
    sites = composition.sites
    every = [(a, b) for a in sites for b in sites if a[0] < b[0] and (a, b) not in without]
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))
    return [every[at] for at in order[:n].tolist()]


def _path_test(pairs: tuple[MeasuredPair, ...], n_positions: int, seed: int) -> PathTest:
    if len(pairs) < 3 or not any(pair.is_control for pair in pairs):
        raise UsageError(
            f"{len(pairs)} pairs of heads are too few to compare", hint="choose more heads"
        )
    score = torch.tensor([pair.score for pair in pairs])
    kl = torch.tensor([pair.kl for pair in pairs])
    is_control = torch.tensor([pair.is_control for pair in pairs])
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(pairs), (BOOTSTRAPS, len(pairs)), generator=generator)
    correlation = spearman(score[draws], kl[draws])
    return PathTest(
        pairs=pairs,
        n_positions=n_positions,
        rank_correlation=_estimate(float(spearman(score, kl)), correlation),
        largest_kl=_mean(kl[~is_control], generator),
        control_kl=_mean(kl[is_control], generator),
    )


def _mean(values: Float[Tensor, " pair"], generator: torch.Generator) -> Estimate:
    draws = torch.randint(len(values), (BOOTSTRAPS, len(values)), generator=generator)
    return _estimate(float(values.mean()), values[draws].mean(1))


def _estimate(value: float, draws: Float[Tensor, " draw"]) -> Estimate:
    low, high = draws.quantile(torch.tensor([0.025, 0.975])).tolist()
    return Estimate(value, low, high)
