"""Do lenses work where they were not fitted: at another layer, on a changed model?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from rich.table import Table
from torch import Tensor

from saccade.errors import LensError
from saccade.heads import capture, output_matrix
from saccade.lenses.collection import Lenses
from saccade.lenses.corpus import Corpus
from saccade.lenses.evaluate import choose_positions, evaluate_lenses
from saccade.lenses.gather import Progress
from saccade.lenses.held_out import HeldOut
from saccade.lenses.lens import lens_kind
from saccade.lenses.sample import Sample

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

# Enough for figures to a few hundredths of a nat; more would only cost time.
POSITIONS, N_WORDS = 256, 1024


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What the lenses of each layer make of the heads of every other."""

    layers: tuple[int, ...]
    kl: Float[Tensor, "source target"]
    """KL(model || lens), the mean over the heads of the target layer."""
    constant_kl: float
    """Of the lens that hears nothing: a lens above it is worse than none."""

    @property
    def extra(self) -> Float[Tensor, "source target"]:
        """How much more that is than the target layer's own lenses have."""
        return self.kl - self.kl.diagonal()

    @property
    def gain(self) -> float:
        """How much less KL the layers' own lenses have than the lens that hears nothing."""
        return self.constant_kl - float(self.kl.diagonal().mean())

    def by_layer(self) -> dict[int, Float[Tensor, " target"]]:
        """The extra KL as rows, one for each layer that lenses were taken from."""
        return dict(zip(self.layers, self.extra, strict=True))

    def by_distance(self) -> dict[int, float]:
        """The median extra KL of lenses from so many layers away; a few have a hundred nats."""
        place = torch.arange(len(self.layers))
        far = (place[:, None] - place).abs()
        return {d: float(self.extra[far == d].median()) for d in range(len(self.layers))}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        return {
            "layers": list(self.layers),
            "constant_kl": round(self.constant_kl, 6),
            "gain": round(self.gain, 6),
            "extra_kl": [[round(v, 6) for v in row] for row in self.extra.tolist()],
            "by_distance": {str(d): round(v, 6) for d, v in self.by_distance().items()},
        }

    def to_table(self) -> Table:
        """What a lens costs, by how many layers away it was fitted."""
        caption = f"own lenses gain {self.gain:.3f} over the constant lens"
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
    lenses of the residual stream. Heads have no common coordinates but that stream, so what a head
    writes there is turned into what the lens's own head would have to hold to write it (least
    squares; both less their means). Heads of two layers are no pairs either: each head is read with
    the best lens of the other layer, chosen on half of the positions and scored on the other half.

    Args:
        layers: which; all that have lenses by default.
    """
    model = lenses.model
    chosen = tuple(lenses.by_layer if layers is None else layers)
    _check_alike(lenses, chosen)
    judge = held_out_of(lenses, corpus)
    halves = [_only(judge, part) for part in (slice(0, None, 2), slice(1, None, 2))]
    means = {layer: judge.sample.z[layer].float().mean(0) for layer in chosen}
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
    return Transfer(layers=chosen, kl=kl, constant_kl=halves[1].constant_kl())


@dataclass(frozen=True, kw_only=True)
class Moved:
    """Lenses on the model they were fitted for, and on a changed version of it."""

    model: str
    changed: str
    kl: float
    """KL(model || lens), the mean over all heads, where they were fitted."""
    changed_kl: float
    constant_kl: float
    changed_constant_kl: float
    """Of the lens that hears nothing, fitted for the first model too."""

    @property
    def extra(self) -> float:
        """How much more KL the lenses have on the changed model."""
        return self.changed_kl - self.kl

    @property
    def kept(self) -> float:
        """The share of their gain over the constant lens that is left on the changed model."""
        gain = self.constant_kl - self.kl
        return (self.changed_constant_kl - self.changed_kl) / gain if gain > 0 else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, ready for JSON."""
        own = ("kl", "changed_kl", "constant_kl", "changed_constant_kl", "extra", "kept")
        figures = {name: round(getattr(self, name), 6) for name in own}
        return {"model": self.model, "changed": self.changed, **figures}

    def to_table(self) -> Table:
        """Both models side by side."""
        table = Table(title="Lenses on a changed model", caption=f"kept: {self.kept:.0%} of gain")
        for name in ("model", "KL", "constant lens"):
            table.add_column(name, justify="left" if name == "model" else "right")
        table.add_row(self.model, f"{self.kl:.3f}", f"{self.constant_kl:.3f}")
        table.add_row(self.changed, f"{self.changed_kl:.3f}", f"{self.changed_constant_kl:.3f}")
        return table


def transfer_to(
    lenses: Lenses, changed: LanguageModel, corpus: Corpus, *, progress: Progress | None = None
) -> Moved:
    """Use lenses on a changed version of their model: another checkpoint, a fine-tuned one.

    Attention Lens (https://arxiv.org/abs/2310.16270) leaves this to future work; Belrose et al.
    find at most 0.3 bits a byte for a tuned lens of LLaMA on Vicuna.
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
        constant_kl=here.constant_kl,
        changed_constant_kl=there.constant_kl,
    )


def moved_to(lenses: Lenses, changed: LanguageModel) -> Lenses:
    """The same lenses bound to another version of their model; its unembedding is the new one's.

    Raises:
        LensError: its layers, heads or words are not those of the first.
    """
    kind = lens_kind(lenses.made.kind)
    by_layer = {}
    for layer, lens in lenses.by_layer.items():
        try:
            by_layer[layer] = kind.start(changed, layer)
            by_layer[layer].load_state_dict(lens.state_dict())
        except RuntimeError as error:
            raise LensError(
                f"{changed.name} is no version of {lenses.model.name}: its heads or words differ "
                f"at layer {layer}",
                hint="give another checkpoint of the same model",
            ) from error
        by_layer[layer].requires_grad_(False)
    return replace(lenses, model=changed, by_layer=by_layer, statistics=None, held_out=None)


@torch.no_grad()
def held_out_of(lenses: Lenses, corpus: Corpus) -> HeldOut:
    """Positions of a text, ready to judge the lenses of a model with."""
    windows, picked = choose_positions(lenses.model, corpus.windows, POSITIONS)
    captured = capture(lenses.model, windows.to(lenses.model.device))
    sample = Sample.take(captured.z, captured.final, picked.flatten().nonzero()[:, 0])
    return HeldOut.of(lenses.model, sample, lenses.constant, n_words=N_WORDS)


def _only(judge: HeldOut, part: slice) -> HeldOut:
    return replace(judge, sample=judge.sample[part], teacher=judge.teacher[part])


def _all_pairs(
    lenses: Lenses,
    half: HeldOut,
    source: int,
    target: int,
    through: Float[Tensor, "target_head source_head d_target d_source"],
    means: dict[int, Float[Tensor, "head d_head"]],
) -> Float[Tensor, "target_head source_head"]:
    """KL of every lens of one layer on every head of another."""
    held = half.sample.z[target].float() - means[target]  # [n, target_head, d_target]
    rows = []
    for head in range(held.shape[1]):
        as_source = torch.einsum("ni,sij->nsj", held[:, head], through[head]) + means[source]
        rows.append(half.kl_of(lenses.by_layer[source](as_source, words=half.words.ids)))
    return torch.stack(rows)


def _check_alike(lenses: Lenses, layers: tuple[int, ...]) -> None:
    for layer in layers:
        lenses.model.layer(layer)
        if layer not in lenses.by_layer or lenses.by_layer[layer].site != "head":
            raise LensError(
                f"there is no lens of heads for layer {layer}",
                hint="give lenses of kind head, dense or jacobian, and layers they have",
            )
