"""Predictions by layer and position: of the residual stream, or of one head of each layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.interp.heads.residual_path import direct_states
from saccade.interp.lenses.head_lens import said_by_head
from saccade.interp.lenses.lens import activation_at
from saccade.interp.lenses.lens_set import share_explained
from saccade.interp.lenses.residual_lenses import HeadLogitLens, LogitLens
from saccade.interp.lenses.top_tokens import TokenValue, TopTokens, largest, lens_prediction, plain
from saccade.interp.readings.reading_table import WEAK

if TYPE_CHECKING:
    from saccade.interp.lenses.lens_set import Lenses
    from saccade.interp.readings.text_run import TextRun


# A head card: one head at one position, read with every available lens, side by side.

UNEMBEDDING = "unembedding"


@dataclass(frozen=True, kw_only=True)
class SeenThrough:
    """The prediction of one lens for the head, and the quality of that lens."""

    name: str
    kind: str
    method: str
    kl_from_baseline: float | None
    """KL from the baseline lens in nats; None for the unembedding, which has no baseline."""
    quality: dict[str, float]
    explained: float | None
    """The share of the baseline lens's KL that it removes, on held-out text."""
    fidelity: float | None
    is_weak: bool
    predicts: tuple[TokenValue, ...]
    adds: tuple[TokenValue, ...]
    suppresses: tuple[TokenValue, ...]


@dataclass(frozen=True, kw_only=True)
class HeadCard:
    """One head at one position of a text."""

    layer: int
    head: int
    position: int
    tokens: list[str]
    lenses: tuple[SeenThrough, ...]
    attention: tuple[float, ...] | None
    """One weight for each token up to the position; None if the model hides them."""
    entropy: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; numbers to six digits."""
        return plain(self)


@torch.inference_mode()
def head_card(
    run: TextRun,
    lenses: Mapping[str, Lenses],
    *,
    layer: int,
    head: int,
    position: int = -1,
    top: int = 10,
) -> HeadCard:
    """Read one head with the raw unembedding and with each of ``lenses``, by name.

    The run exists already: this costs one product with the unembedding per lens.
    """
    model, at = run.model, run.position(position)
    model.check_head(layer, head)
    direct = _direct(run, layer, head, at)
    weights = run.attention_at(at).get(layer)
    row = None if weights is None else weights[head, : at + 1].float()
    return HeadCard(
        layer=layer,
        head=head,
        position=at,
        tokens=run.tokens,
        lenses=tuple(
            _seen(
                run,
                lenses,
                direct,
                layer=layer,
                head=head,
                at=at,
                top=top,
            )
        ),
        attention=None if row is None else tuple(row.tolist()),
        entropy=None if row is None else float(entropy_of(row)),
    )


def entropy_of(weights: Float[Tensor, "*more key_pos"]) -> Float[Tensor, "*more"]:
    """Entropy of attention weights, in nats: 0 for one token, log n for n equal weights.

    >>> round(float(entropy_of(torch.tensor([0.5, 0.5, 0.0]))), 4)
    0.6931
    """
    return -torch.xlogy(weights, weights).sum(-1).clamp_max(0.0)


def _seen(
    run: TextRun,
    lenses: Mapping[str, Lenses],
    direct: Tensor | None,
    *,
    layer: int,
    head: int,
    at: int,
    top: int,
) -> Iterator[SeenThrough]:
    if direct is not None:
        yield _unembedded(run, direct, top)
    for name, each in lenses.items():
        lens = each.by_layer.get(layer)
        if lens is None or lens.site == "residual":
            continue
        activation = activation_at(run.model, run.captured, layer, lens.site, positions=[at])
        said = lens_prediction(said_by_head(lens, activation, head), each.baseline, top=top)
        quality = each.quality_of(layer, head)
        explained = share_explained(quality)
        yield SeenThrough(
            name=name,
            kind=each.provenance.kind,
            method=each.provenance.method,
            kl_from_baseline=float(said.kl_from_baseline[0]),
            quality=quality,
            explained=explained,
            fidelity=quality.get("ablation"),
            is_weak=explained is not None and explained < WEAK,
            predicts=_tokens(run, said.predicts),
            adds=tuple(token for token in _tokens(run, said.adds) if token.value > 0),
            suppresses=tuple(token for token in _tokens(run, said.suppresses) if token.value < 0),
        )


def _direct(run: TextRun, layer: int, head: int, at: int) -> Float[Tensor, "1 d_model"] | None:
    if not run.model.layer(layer).reaches_stream:
        return None
    return direct_states(run.model, run.captured, layer, positions=[at])[0, :, head]


def _unembedded(run: TextRun, direct: Tensor, top: int) -> SeenThrough:
    logits = run.model.unembedding.linear(direct).float()
    low = largest(-logits, top)
    return SeenThrough(
        name=UNEMBEDDING,
        kind=HeadLogitLens.kind,
        method="",
        kl_from_baseline=None,
        quality={},
        explained=None,
        fidelity=None,
        is_weak=False,
        predicts=(),
        adds=_tokens(run, largest(logits, top)),
        suppresses=_tokens(run, TopTokens(low.ids, -low.values)),
    )


def _tokens(run: TextRun, order: TopTokens) -> tuple[TokenValue, ...]:
    ids: Sequence[int] = order.ids[0].tolist()
    return tuple(map(TokenValue, ids, run.model.tokens(ids), order.values[0].tolist()))


@dataclass(frozen=True)
class Span:
    """Consecutive positions."""

    first: int
    count: int

    def checked(self, run: TextRun) -> list[int]:
        """The positions of a text, at least one."""
        start = run.position(self.first)
        return list(range(start, min(start + self.count, len(run.tokens))))


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is read at each layer, the stream or the head with this index, and with which lenses."""

    name: str
    """The name of the lenses."""
    lenses: Lenses | None
    """None for the plain unembedding of the residual stream."""
    head: int | None = None

    def layers(self, run: TextRun) -> list[int]:
        """The layers that have such a head and a lens for it."""
        if self.lenses is None:
            return [at.index for at in run.model.layers]
        is_stream = self.head is None
        fitting = [
            layer
            for layer, lens in self.lenses.by_layer.items()
            if (lens.site == "residual") == is_stream
            and (is_stream or 0 <= (self.head or 0) < run.model.layer(layer).n_heads)
        ]
        if not fitting:
            what = "the residual stream" if is_stream else f"head {self.head}"
            raise LensError(
                f"the lenses {self.name} do not read {what}",
                hint="choose other lenses, or another head",
            )
        return fitting

    def logits(self, run: TextRun, layer: int, at: list[int]) -> Float[Tensor, "pos d_vocab"]:
        """The logits at some positions of one layer."""
        model = run.model
        lens = LogitLens.start(model, layer) if self.lenses is None else self.lenses.by_layer[layer]
        activation = activation_at(model, run.captured, layer, lens.site, positions=at)
        return said_by_head(lens, activation, self.head or 0).float()


@dataclass(frozen=True)
class Cells:
    """The likeliest tokens at some positions."""

    ids: list[list[int]]
    values: list[list[float]]
    entropy: list[float]


@dataclass(frozen=True, kw_only=True)
class PositionGrid:
    """The likeliest tokens of each layer at each position."""

    site: Literal["residual", "head"]
    head: int | None
    lens: str
    tokens: list[str]
    first: int
    """The position of the first column."""
    layers: list[int]
    texts: dict[str, str]
    """Text by token id, each id once, since neighbouring cells mostly share tokens."""
    ids: list[list[list[int]]]
    """Layer -> position -> the tokens of a cell."""
    values: list[list[list[float]]]
    """Their probabilities."""
    entropy: list[list[float]]
    final: Cells
    """The model's own output."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


@torch.inference_mode()
def position_grid(run: TextRun, site: Site, span: Span, *, top: int = 10) -> PositionGrid:
    """The ``top`` likeliest tokens of each layer at each position."""
    at, layers = span.checked(run), site.layers(run)
    cells = [_cells(logits, top) for logits in _rows(run, site, layers, at)]
    *grid, final = cells
    every = sorted({id_ for cell in cells for row in cell.ids for id_ in row})
    return PositionGrid(
        site="residual" if site.head is None else "head",
        head=site.head,
        lens=site.name,
        tokens=run.tokens,
        first=at[0],
        layers=layers,
        texts=dict(zip(map(str, every), run.model.tokens(every), strict=True)),
        ids=[cell.ids for cell in grid],
        values=[cell.values for cell in grid],
        entropy=[cell.entropy for cell in grid],
        final=final,
    )


@dataclass(frozen=True)
class Standing:
    """The rank and the probability of a token at some positions."""

    ranks: list[int]
    values: list[float]


@dataclass(frozen=True, kw_only=True)
class RankedToken:
    """The rank of a token at each layer and position."""

    id: int
    text: str
    ranks: list[list[int]]
    """Layer -> position -> rank."""
    values: list[list[float]]
    final: Standing
    """In the model's own output."""


@dataclass(frozen=True, kw_only=True)
class TokenRanks:
    """The ranks of tokens in the vocabulary."""

    site: Literal["residual", "head"]
    head: int | None
    lens: str
    first: int
    layers: list[int]
    tokens: tuple[RankedToken, ...]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return plain(self)


@torch.inference_mode()
def token_ranks(run: TextRun, site: Site, span: Span, tokens: Sequence[int]) -> TokenRanks:
    """The ranks of tokens in the vocabulary, by layer and position; rank 0 is the likeliest."""
    at, layers = span.checked(run), site.layers(run)
    if unknown := [token for token in tokens if not 0 <= token < run.model.d_vocab]:
        raise UsageError(
            f"no token {unknown[0]}: the model has tokens 0-{run.model.d_vocab - 1}",
            hint="give a token as text",
        )
    wanted = torch.tensor(list(tokens))
    found = [_standing(logits, wanted) for logits in _rows(run, site, layers, at)]
    *grid, final = found
    return TokenRanks(
        site="residual" if site.head is None else "head",
        head=site.head,
        lens=site.name,
        first=at[0],
        layers=layers,
        tokens=tuple(
            RankedToken(
                id=token,
                text=text,
                ranks=[each[place].ranks for each in grid],
                values=[each[place].values for each in grid],
                final=final[place],
            )
            for place, (token, text) in enumerate(
                zip(tokens, run.model.tokens(tokens), strict=True)
            )
        ),
    )


def _rows(
    run: TextRun, site: Site, layers: Sequence[int], at: list[int]
) -> Iterator[Float[Tensor, "pos d_vocab"]]:
    """The logits of each layer, then the model's own."""
    for layer in layers:
        yield site.logits(run, layer, at)
    yield run.model.unembedding.logits(run.captured.final[0, at]).float()


def _cells(logits: Float[Tensor, "pos d_vocab"], top: int) -> Cells:
    best = largest(logits, min(top, logits.shape[1]))
    log_p = logits.log_softmax(-1)
    chances = log_p.gather(1, best.ids).exp()
    entropy = -(log_p.exp() * log_p).sum(-1)
    values = [plain(tuple(row)) for row in chances.tolist()]
    return Cells(best.ids.tolist(), values, plain(tuple(entropy.tolist())))


def _standing(logits: Float[Tensor, "pos d_vocab"], tokens: Tensor) -> list[Standing]:
    """Ranks and probabilities of each token."""
    tokens = tokens.to(logits.device)
    ranks = [(logits > logits[:, token, None]).sum(-1).tolist() for token in tokens]
    chances = logits.softmax(-1)[:, tokens]
    values = [plain(tuple(row)) for row in chances.T.tolist()]
    return list(map(Standing, ranks, values))
