"""One lens for many heads: what sharing it over layers costs, and what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from saccade.errors import LensError
from saccade.heads import output_matrix
from saccade.investigations.transfer import held_out_of
from saccade.lenses.collection import Lenses
from saccade.lenses.corpus import Corpus
from saccade.lenses.covariances import Covariances, ridged
from saccade.lenses.gather import Progress
from saccade.lenses.head_lens import HeadLens
from saccade.lenses.held_out import HeldOut

SIZES = (1, 2, 3, 5, 10)
# Relative to the mean variance; the best of them is taken, of own and of shared lenses alike.
RIDGES = (0.01, 0.1, 1.0)


class Sharing(NamedTuple):
    """Lenses shared in one way."""

    name: str
    kl: float
    """KL(model || lens), the mean over all heads."""
    numbers: int
    """How many numbers all the lenses of the model hold."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The ways compared, from own lenses to one for all heads."""

    constant_kl: float
    ways: tuple[Sharing, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        ways = [{**way._asdict(), "kl": round(way.kl, 6)} for way in self.ways]
        return {"constant_kl": round(self.constant_kl, 6), "ways": ways}

    def to_table(self) -> Table:
        """One row a way."""
        table = Table(title="Lenses shared by heads and layers")
        for name in ("one lens for", "KL", "gain kept", "numbers"):
            table.add_column(name, justify="left" if name == "one lens for" else "right")
        gain = self.constant_kl - self.ways[0].kl
        for way in self.ways:
            kept = (self.constant_kl - way.kl) / gain if gain > 0 else float("nan")
            table.add_row(way.name, f"{way.kl:.3f}", f"{kept:.0%}", f"{way.numbers:,}")
        table.add_row("nothing (constant)", f"{self.constant_kl:.3f}", "0%", "")
        return table


@torch.no_grad()
def share_lenses(
    lenses: Lenses,
    corpus: Corpus,
    *,
    sizes: Sequence[int] = SIZES,
    progress: Progress | None = None,
) -> Shared:
    """Solve lenses that all heads of a few neighbouring layers share, from the sums of the fit.

    Attention Lens (https://arxiv.org/abs/2310.16270) names this as a way to cut the cost. A shared
    lens reads what a head writes to the residual stream, ``a = W_O z``, which is the one thing
    heads have in common: ``logits = W_U B (a - mean) + c`` with B of d_model x d_model, by
    ridge least squares on the final state, and the constant lens as c. The covariances of a come
    out of those of z, so no text is read again. Own lenses by the same recipe stand beside, and the
    lenses as they were fitted.

    Args:
        sizes: how many neighbouring layers share a lens; all layers together come last.
    """
    statistics = lenses.statistics
    if statistics is None:
        raise LensError(
            "these lenses do not hold the sums they were solved from",
            hint="give lenses of kind head, fitted with `--method closed-form` or `polish`",
        )
    layers = list(lenses.by_layer)
    judge = held_out_of(lenses, corpus)
    by_layer = {layer: _Written.of(lenses, layer) for layer in layers}
    fitted = _mean([judge.kl(lens, layer) for layer, lens in lenses.by_layer.items()])
    ways = [Sharing("a head, as fitted", fitted, _numbers(lenses))]
    groups: list[tuple[str, int]] = [("a head, by least squares", 0)]
    groups += [(f"{n} layer{'s' if n > 1 else ''}", n) for n in sizes if n < len(layers)]
    groups.append(("all layers", len(layers)))
    for done, (name, size) in enumerate(groups, start=1):
        kl = [_shared_kl(lenses, judge, by_layer, size, ridge) for ridge in RIDGES]
        ways.append(Sharing(name, min(kl), _shared_numbers(lenses, by_layer, size)))
        if progress is not None:
            progress("sharing lenses", done, len(groups))
    return Shared(constant_kl=judge.constant_kl(), ways=tuple(ways))


class _Written(NamedTuple):
    """What the heads of a layer hold, and how they write it."""

    covariances: Covariances
    writes: Float[Tensor, "head d_head d_model"]

    @classmethod
    def of(cls, lenses: Lenses, layer: int) -> _Written:
        assert lenses.statistics is not None, "checked before"
        writes = output_matrix(lenses.model.layer(layer)).double().cpu()
        return cls(Covariances.of(lenses.statistics, layer), writes)


def _shared_kl(
    lenses: Lenses, judge: HeldOut, by_layer: dict[int, _Written], size: int, ridge: float
) -> float:
    maps = _shared(by_layer, size, ridge) if size else _own(by_layer, ridge)
    return _mean([judge.kl(_lens(lenses, at, maps[at], by_layer[at]), at) for at in by_layer])


def _shared_numbers(lenses: Lenses, by_layer: dict[int, _Written], size: int) -> int:
    """Maps, the mean of every head, and one constant lens."""
    d = lenses.model.d_model
    each_head = sum(written.writes.numel() for written in by_layer.values())
    maps = -(-len(by_layer) // size) * d * d if size else each_head
    means = sum(written.covariances.mean.numel() for written in by_layer.values())
    return maps + means + lenses.model.d_vocab


def _own(by_layer: dict[int, _Written], ridge: float) -> dict[int, Tensor]:
    """Least squares from z to the final state, for each head by itself."""
    return {
        layer: torch.linalg.solve(ridged(each.covariances.zz, ridge), each.covariances.zf)
        for layer, each in by_layer.items()
    }


def _shared(by_layer: dict[int, _Written], size: int, ridge: float) -> dict[int, Tensor]:
    """The same from what heads write, one map for all heads of so many neighbouring layers."""
    layers = list(by_layer)
    maps = {}
    for start in range(0, len(layers), size):
        group = [by_layer[layer] for layer in layers[start : start + size]]
        d = group[0].writes.shape[-1]
        aa, af = torch.zeros(d, d, dtype=torch.float64), torch.zeros(d, d, dtype=torch.float64)
        for found, writes in group:
            aa += torch.einsum("hid,hij,hje->de", writes, found.zz, writes)
            af += torch.einsum("hid,hie->de", writes, found.zf)
        shared = torch.linalg.solve(ridged(aa[None], ridge)[0], af)
        for layer in layers[start : start + size]:
            maps[layer] = by_layer[layer].writes @ shared
    return maps


def _lens(lenses: Lenses, layer: int, weight: Tensor, written: _Written) -> HeadLens:
    lens = HeadLens.start(lenses.model, layer)
    weight = weight * lenses.model.unembedding.scale  # the lens writes through the plain matrix
    lens.weight.data.copy_(weight)
    lens.bias.data.copy_(-torch.einsum("hi,hid->hd", written.covariances.mean, weight))
    lens.word_bias.data.copy_(lenses.constant.expand_as(lens.word_bias))
    return lens


def _numbers(lenses: Lenses) -> int:
    return sum(p.numel() for lens in lenses.by_layer.values() for p in lens.parameters())


def _mean(by_layer: list[Tensor]) -> float:
    return float(torch.cat(by_layer).mean())
