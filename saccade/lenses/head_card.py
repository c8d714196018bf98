"""A head card: one head at one position, seen through every lens there is, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.heads import direct_states
from saccade.lenses.head_reading import Word, plain, share_explained
from saccade.lenses.logit_lens import HeadLogitLens
from saccade.lenses.one_head import said_by_head
from saccade.lenses.reading_table import WEAK
from saccade.lenses.sites import held_at
from saccade.lenses.top_words import TopWords, largest, what_is_said

if TYPE_CHECKING:
    from saccade.lenses.collection import Lenses
    from saccade.lenses.text_run import TextRun

UNEMBEDDING = "unembedding"


@dataclass(frozen=True, kw_only=True)
class SeenThrough:
    """What one lens makes of the head, and how good that lens is."""

    name: str
    kind: str
    method: str
    says: float | None
    """KL from the constant lens in nats; None for the unembedding, which has no such lens."""
    quality: dict[str, float]
    explained: float | None
    """The share of the constant lens's KL that it removes, on held-out text."""
    fidelity: float | None
    is_weak: bool
    predicts: tuple[Word, ...]
    adds: tuple[Word, ...]
    suppresses: tuple[Word, ...]


@dataclass(frozen=True, kw_only=True)
class HeadCard:
    """One head at one position of a text."""

    layer: int
    head: int
    position: int
    tokens: list[str]
    word: Word
    """What the model predicts there, with its probability."""
    contributes: float | None
    """What the head adds directly to that word's logit; None without a direct path."""
    lenses: tuple[SeenThrough, ...]
    attention: list[float] | None
    """One weight for each token up to the position; None where the model hides them."""
    entropy: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts; numbers to six digits."""
        whole = {each.name: plain(getattr(self, each.name)) for each in fields(self)}
        whole["lenses"] = [
            {each.name: plain(getattr(lens, each.name)) for each in fields(lens)}
            for lens in self.lenses
        ]
        whole["attention"] = None if self.attention is None else plain(tuple(self.attention))
        return whole


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
    """Read one head through the raw unembedding and through each of ``lenses``, by their names.

    The run was made before: this costs one product with the unembedding for each lens.
    """
    model, at = run.model, run.position(position)
    model.check_head(layer, head)
    chances = model.unembedding.logits(run.captured.final[:, at]).float().softmax(-1)
    likeliest = largest(chances, 1)
    direct = _direct(run, layer, head, at)
    weights = run.attention_at(at).get(layer)
    row = None if weights is None else weights[head, : at + 1].float()
    return HeadCard(
        layer=layer,
        head=head,
        position=at,
        tokens=run.tokens,
        word=_words(run, likeliest)[0],
        contributes=None if direct is None else _contributes(run, direct, likeliest.ids[0, 0]),
        lenses=tuple(_seen(run, lenses, direct, layer=layer, head=head, at=at, top=top)),
        attention=None if row is None else row.tolist(),
        entropy=None if row is None else float(entropy_of(row)),
    )


def entropy_of(weights: Float[Tensor, "*more key_pos"]) -> Float[Tensor, "*more"]:
    """Of attention weights, in nats: 0 looks at one token, log n at n alike.

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
        held = held_at(run.model, run.captured, layer, lens.site, positions=[at])
        said = what_is_said(said_by_head(lens, held, head), each.constant, top=top)
        quality = each.quality_of(layer, head)
        explained = share_explained(quality)
        yield SeenThrough(
            name=name,
            kind=each.made.kind,
            method=each.made.method,
            says=float(said.says[0]),
            quality=quality,
            explained=explained,
            fidelity=quality.get("ablation"),
            is_weak=explained is not None and explained < WEAK,
            predicts=_words(run, said.predicts),
            adds=tuple(word for word in _words(run, said.adds) if word.value > 0),
            suppresses=tuple(word for word in _words(run, said.suppresses) if word.value < 0),
        )


def _direct(run: TextRun, layer: int, head: int, at: int) -> Float[Tensor, "1 d_model"] | None:
    if not run.model.layer(layer).reaches_stream:
        return None
    return direct_states(run.model, run.captured, layer, positions=[at])[0, :, head]


def _contributes(run: TextRun, direct: Tensor, word: Tensor) -> float:
    row = run.model.unembedding.weight[word].float()
    return float(direct[0].to(row) @ row * run.model.unembedding.scale)


def _unembedded(run: TextRun, direct: Tensor, top: int) -> SeenThrough:
    logits = run.model.unembedding.linear(direct).float()
    low = largest(-logits, top)
    return SeenThrough(
        name=UNEMBEDDING,
        kind=HeadLogitLens.kind,
        method="",
        says=None,
        quality={},
        explained=None,
        fidelity=None,
        is_weak=False,
        predicts=(),
        adds=_words(run, largest(logits, top)),
        suppresses=_words(run, TopWords(low.ids, -low.values)),
    )


def _words(run: TextRun, order: TopWords) -> tuple[Word, ...]:
    ids: Sequence[int] = order.ids[0].tolist()
    return tuple(map(Word, ids, run.model.words(ids), order.values[0].tolist()))
