"""Do lenses work where they were not fitted: at another layer, on a changed model?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor

from saccade.errors import LensError, UsageError
from saccade.interp.heads.capture import capture, output_matrix
from saccade.interp.lenses.corpus import Corpus
from saccade.interp.lenses.evaluate import choose_positions, evaluate_lenses
from saccade.interp.lenses.gather import Progress
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.held_out import HeldOut, Sample
from saccade.interp.lenses.lens import lens_kind
from saccade.interp.lenses.lens_set import Lenses
from saccade.interp.lenses.statistics import Covariances, ridged

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Enough for metrics to a few hundredths of a nat; more would only cost time.
POSITIONS, N_TOKENS = 256, 1024


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The KL of the lenses of each layer on the heads of every other."""

    layers: tuple[int, ...]
    kl: Float[Tensor, "source target"]
    """KL(model || lens), the mean over the heads of the target layer."""
    baseline_kl: float
    """KL of the baseline lens: a lens above it is worse than none."""

    @property
    def extra(self) -> Float[Tensor, "source target"]:
        """KL above that of the target layer's own lenses."""
        return self.kl - self.kl.diagonal()

    @property
    def gain(self) -> float:
        """KL of the baseline lens minus that of the layers' own lenses."""
        return self.baseline_kl - float(self.kl.diagonal().mean())

    def by_layer(self) -> dict[int, Float[Tensor, " target"]]:
        """The extra KL as rows, one per source layer."""
        return dict(zip(self.layers, self.extra, strict=True))

    def by_distance(self) -> dict[int, float]:
        """The median extra KL by layer distance; a median, because a few have a hundred nats."""
        place = torch.arange(len(self.layers))
        far = (place[:, None] - place).abs()
        return {d: float(self.extra[far == d].median()) for d in range(len(self.layers))}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "layers": list(self.layers),
            "baseline_kl": round(self.baseline_kl, 6),
            "gain": round(self.gain, 6),
            "extra_kl": [[round(v, 6) for v in row] for row in self.extra.tolist()],
            "by_distance": {str(d): round(v, 6) for d, v in self.by_distance().items()},
        }

    def to_table(self) -> Table:
        """The extra KL of a lens, by layer distance."""
        caption = f"own lenses gain {self.gain:.3f} over the baseline lens"
        table = Table(title="Lenses of other layers", caption=caption)
        table.add_column("layers away", justify="right")
        table.add_column("extra KL (median)", justify="right")
        for distance, extra in self.by_distance().items():
            table.add_row(str(distance), f"{extra:.3f}")
        return table


@torch.no_grad()
def transfer_matrix(
    lenses: Lenses,
    corpus: Corpus,
    *,
    layers: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Transfer:
    """Read the heads of every layer with the lenses of every other.

    Belrose et al., 2023 (https://arxiv.org/abs/2303.08112), section 3.2, measure the same for
    lenses of the residual stream. Heads have no common coordinates except that stream, so the
    output of a head is mapped to the activation with which the lens's own head would write the same
    (least squares; both minus their means). Heads of two layers do not correspond either: each head
    is read with the best lens of the other layer, chosen on half of the positions and scored on the
    other half.

    Args:
        layers: default: all that have lenses.
    """
    model = lenses.model
    chosen = tuple(lenses.by_layer if layers is None else layers)
    _check_alike(lenses, chosen)
    held_out = held_out_of(lenses, corpus)
    halves = [_only(held_out, part) for part in (slice(0, None, 2), slice(1, None, 2))]
    means = {layer: held_out.sample.z[layer].float().mean(0) for layer in chosen}
    writes = {layer: output_matrix(model.layer(layer)).float() for layer in chosen}
    kl = torch.zeros(len(chosen), len(chosen))
    for row, source in enumerate(chosen):
        reads = torch.linalg.pinv(writes[source])  # [head, d_model, d_head]
        for column, target in enumerate(chosen):
            if source == target:
                kl[row, column] = halves[1].kl(lenses.by_layer[source], source).mean()
                continue
            through = torch.einsum("tid,sdj->tsij", writes[target], reads)
            by_half = [_all_pairs(lenses, half, source, target, through, means) for half in halves]
            best = by_half[0].argmin(1, keepdim=True)
            kl[row, column] = by_half[1].gather(1, best).mean()
        if progress is not None:
            progress("reading other layers", row + 1, len(chosen))
    return Transfer(layers=chosen, kl=kl, baseline_kl=halves[1].baseline_kl())


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Lenses on the model they were fitted for, and on a changed version of it."""

    model: str
    changed: str
    kl: float
    """KL(model || lens), the mean over all heads, where they were fitted."""
    changed_kl: float
    baseline_kl: float
    changed_baseline_kl: float
    """Of the baseline lens, also fitted for the first model."""

    @property
    def extra(self) -> float:
        """KL on the changed model minus KL on the first."""
        return self.changed_kl - self.kl

    @property
    def kept(self) -> float:
        """The share of their gain over the baseline lens that is left on the changed model."""
        gain = self.baseline_kl - self.kl
        return (self.changed_baseline_kl - self.changed_kl) / gain if gain > 0 else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        own = ("kl", "changed_kl", "baseline_kl", "changed_baseline_kl", "extra", "kept")
        metrics = {name: round(getattr(self, name), 6) for name in own}
        return {"model": self.model, "changed": self.changed, **metrics}

    def to_table(self) -> Table:
        """One row per model."""
        table = Table(title="Lenses on a changed model", caption=f"kept: {self.kept:.0%} of gain")
        for name in ("model", "KL", "baseline lens"):
            table.add_column(name, justify="left" if name == "model" else "right")
        table.add_row(self.model, f"{self.kl:.3f}", f"{self.baseline_kl:.3f}")
        table.add_row(self.changed, f"{self.changed_kl:.3f}", f"{self.changed_baseline_kl:.3f}")
        return table


def transfer_to(
    lenses: Lenses, changed: LanguageModel, corpus: Corpus, *, progress: Progress | None = None
) -> Moved:
    """Use lenses on a changed version of their model: another checkpoint, a fine-tuned one.

    Attention Lens (https://arxiv.org/abs/2310.16270) leaves this to future work; Belrose et al.
    find at most 0.3 bits per byte for a tuned lens of LLaMA on Vicuna.
    """
    here, there = (
        evaluate_lenses(each, corpus, max_positions=POSITIONS, baselines=[], progress=progress)
        for each in (lenses, moved_to(lenses, changed))
    )
    return Moved(
        model=lenses.model.name,
        changed=changed.name,
        kl=here.lenses.means["kl"],
        changed_kl=there.lenses.means["kl"],
        baseline_kl=here.baseline_kl,
        changed_baseline_kl=there.baseline_kl,
    )


def moved_to(lenses: Lenses, changed: LanguageModel) -> Lenses:
    """The same lenses bound to another version of their model, with its unembedding.

    Raises:
        LensError: its layers, heads or tokens differ from those of the first.
    """
    kind = lens_kind(lenses.provenance.kind)
    by_layer = {}
    for layer, lens in lenses.by_layer.items():
        try:
            by_layer[layer] = kind.start(changed, layer)
            by_layer[layer].load_state_dict(lens.state_dict())
        except RuntimeError as error:
            raise LensError(
                f"{changed.name} is not a version of {lenses.model.name}: its heads or tokens "
                f"differ at layer {layer}",
                hint="give another checkpoint of the same model",
            ) from error
        by_layer[layer].requires_grad_(False)
    return replace(lenses, model=changed, by_layer=by_layer, stored={})


@torch.no_grad()
def held_out_of(lenses: Lenses, corpus: Corpus) -> HeldOut:
    """Held-out positions of a text, to score the lenses of a model."""
    return _held_out(lenses, corpus.windows)


def _held_out(lenses: Lenses, windows: Int[Tensor, "window pos"]) -> HeldOut:
    windows, picked = choose_positions(lenses.model, windows, POSITIONS)
    captured = capture(lenses.model, windows.to(lenses.model.device))
    sample = Sample.take(captured.z, captured.final, picked.flatten().nonzero()[:, 0])
    return HeldOut.of(lenses.model, sample, lenses.baseline, n_tokens=N_TOKENS)


def _only(held_out: HeldOut, part: slice) -> HeldOut:
    return replace(held_out, sample=held_out.sample[part], teacher=held_out.teacher[part])


def _all_pairs(
    lenses: Lenses,
    half: HeldOut,
    source: int,
    target: int,
    through: Float[Tensor, "target_head source_head d_target d_source"],
    means: dict[int, Float[Tensor, "head d_head"]],
) -> Float[Tensor, "target_head source_head"]:
    """KL of every lens of one layer on every head of another."""
    activation = half.sample.z[target].float() - means[target]  # [n, target_head, d_target]
    rows = []
    for head in range(activation.shape[1]):
        as_source = torch.einsum("ni,sij->nsj", activation[:, head], through[head]) + means[source]
        rows.append(half.kl_of(lenses.by_layer[source](as_source, tokens=half.tokens.ids)))
    return torch.stack(rows)


def _check_alike(lenses: Lenses, layers: tuple[int, ...]) -> None:
    for layer in layers:
        lenses.model.layer(layer)
        if layer not in lenses.by_layer or lenses.by_layer[layer].site != "head":
            raise LensError(
                f"there is no lens of heads for layer {layer}",
                hint="give lenses of kind head, dense or jacobian, and layers they have",
            )


# One lens for many heads: KL and number of parameters of lenses shared over layers.

SIZES = (1, 2, 3, 5, 10)
# Relative to the mean variance; of own and of shared lenses alike, the best of them is chosen.
RIDGES = (0.01, 0.1, 1.0)


class Sharing(NamedTuple):
    """Lenses shared in one way."""

    name: str
    kl: float
    """KL(model || lens), the mean over all heads."""
    numbers: int
    """Number of parameters of all lenses of the model."""
    ridge: float | None
    """Chosen on the validation windows; None for lenses as they were fitted."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The ways compared, from own lenses to one for all heads."""

    baseline_kl: float
    ways: tuple[Sharing, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        ways = [{**way._asdict(), "kl": round(way.kl, 6)} for way in self.ways]
        return {"baseline_kl": round(self.baseline_kl, 6), "ways": ways}

    def to_table(self) -> Table:
        """One row per way of sharing."""
        table = Table(title="Lenses shared by heads and layers")
        for name in ("one lens for", "KL", "gain kept", "numbers", "ridge"):
            table.add_column(name, justify="left" if name == "one lens for" else "right")
        gain = self.baseline_kl - self.ways[0].kl
        for way in self.ways:
            kept = (self.baseline_kl - way.kl) / gain if gain > 0 else float("nan")
            ridge = "" if way.ridge is None else f"{way.ridge:g}"
            table.add_row(way.name, f"{way.kl:.3f}", f"{kept:.0%}", f"{way.numbers:,}", ridge)
        table.add_row("nothing (baseline)", f"{self.baseline_kl:.3f}", "0%", "", "")
        return table


@torch.no_grad()
def share_lenses(
    lenses: Lenses,
    corpus: Corpus,
    *,
    sizes: Sequence[int] = SIZES,
    progress: Progress | None = None,
) -> Shared:
    """Solve lenses shared by all heads of neighbouring layers, from the statistics of the fit.

    Attention Lens (https://arxiv.org/abs/2310.16270) names this as a way to cut the cost. A shared
    lens reads what a head writes to the residual stream, ``a = W_O z``, which is what heads have in
    common: ``logits = W_U B (a - mean) + c`` with B of d_model x d_model, by ridge least squares on
    the final state, and the baseline lens as c. The covariances of a come out of those of z, so no
    text is read again. For comparison: one lens per head by the same method, and the lenses as they
    were fitted.

    The first half of the windows is for validation: the ridge of each way is chosen there. Every KL
    is of the second half, which enters no choice.

    Args:
        sizes: numbers of neighbouring layers that share a lens; all layers are added last.
    """
    statistics = lenses.statistics
    if statistics is None:
        raise LensError(
            "these lenses have no stored statistics of their fit",
            hint="give lenses of kind head, fitted with `--method closed-form` or `polish`",
        )
    layers = list(lenses.by_layer)
    validation, test = (_held_out(lenses, windows) for windows in _halves(corpus))
    by_layer = {layer: _Written.of(lenses, layer) for layer in layers}
    fitted = _mean([test.kl(lens, layer) for layer, lens in lenses.by_layer.items()])
    ways = [Sharing("a head, as fitted", fitted, _numbers(lenses), None)]
    groups: list[tuple[str, int]] = [("a head, by least squares", 0)]
    groups += [(f"{n} layer{'s' if n > 1 else ''}", n) for n in sizes if n < len(layers)]
    groups.append(("all layers", len(layers)))
    for done, (name, size) in enumerate(groups, start=1):
        ridge = min(RIDGES, key=partial(_shared_kl, lenses, validation, by_layer, size))
        kl = _shared_kl(lenses, test, by_layer, size, ridge)
        ways.append(Sharing(name, kl, _shared_numbers(lenses, by_layer, size), ridge))
        if progress is not None:
            progress("sharing lenses", done, len(groups))
    return Shared(baseline_kl=test.baseline_kl(), ways=tuple(ways))


def _halves(corpus: Corpus) -> tuple[Int[Tensor, "window pos"], Int[Tensor, "window pos"]]:
    """Contiguous, because neighbouring windows are too similar to be separate text."""
    n, length = corpus.windows.shape
    if n < 2:
        raise UsageError(
            f"{corpus.source} holds {n} window of {length} tokens: two are needed, one to choose "
            "the ridge on and one to evaluate on",
            hint="give more text, or fewer tokens with --window",
        )
    return corpus.windows[: n // 2], corpus.windows[n // 2 :]


class _Written(NamedTuple):
    """The covariances of the heads of a layer, and their output matrices."""

    covariances: Covariances
    writes: Float[Tensor, "head d_head d_model"]

    @classmethod
    def of(cls, lenses: Lenses, layer: int) -> _Written:
        assert lenses.statistics is not None, "checked before"
        writes = output_matrix(lenses.model.layer(layer)).double().cpu()
        return cls(Covariances.of(lenses.statistics, layer), writes)


def _shared_kl(
    lenses: Lenses, held_out: HeldOut, by_layer: dict[int, _Written], size: int, ridge: float
) -> float:
    maps = _shared(by_layer, size, ridge) if size else _own(by_layer, ridge)
    return _mean([held_out.kl(_lens(lenses, at, maps[at], by_layer[at]), at) for at in by_layer])


def _shared_numbers(lenses: Lenses, by_layer: dict[int, _Written], size: int) -> int:
    """Maps, the mean of every head, and one baseline lens."""
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
    """The same from the outputs of heads, one map for all heads of ``size`` neighbouring layers."""
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
    lens.token_bias.data.copy_(lenses.baseline.expand_as(lens.token_bias))
    return lens


def _numbers(lenses: Lenses) -> int:
    return sum(p.numel() for lens in lenses.by_layer.values() for p in lens.parameters())


def _mean(by_layer: list[Tensor]) -> float:
    return float(torch.cat(by_layer).mean())
