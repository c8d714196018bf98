"""All lenses of a model: one for every layer, what they were made from, how good they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from saccade.errors import LensError, StoreError
from saccade.lenses.head_lens import HeadLens
from saccade.lenses.lens import Lens, lens_kind
from saccade.lenses.places import find_lenses
from saccade.lenses.sample import Sample
from saccade.lenses.statistics import Statistics
from saccade.store import read_manifest, read_tensors, write_folder

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.reading import Reading

Quality = dict[str, dict[str, list[float | None]]]
LENSES = "lenses.safetensors"
STATISTICS = "statistics.safetensors"


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a set of lenses was made for, and from what; stored in its manifest."""

    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    kind: str
    method: str
    objective: str = "kl"
    corpus: str
    corpus_fingerprint: str
    n_tokens: int
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lenses:
    """The lenses of a model, bound to it.

    ``constant`` is the log of the mean predicted distribution: the lens that hears nothing, against
    which all others are measured.
    """

    model: LanguageModel
    by_layer: dict[int, Lens]
    constant: Float[Tensor, " d_vocab"]
    made: Made
    quality: Quality = field(default_factory=dict)
    """Measure -> layer -> one figure a head, on held-out text: ``kl``, ``gain`` and others; of
    fidelity ``ablation``, ``alignment`` and ``spearman``. None where it was not measured."""
    statistics: Statistics | None = None
    """The sums they were solved from; needed to merge them with others."""
    held_out: Sample | None = None
    """The held-out positions they were chosen on; likewise."""

    @property
    def sites(self) -> list[tuple[int, int]]:
        """(layer, head) of every lens, in the order of `logits`."""
        return [(layer, head) for layer in self.by_layer for head in range(self._width(layer))]

    def _width(self, layer: int) -> int:
        return 1 if self.by_layer[layer].site == "residual" else self.model.layer(layer).n_heads

    @torch.inference_mode()
    def logits(
        self, held: Mapping[int, Float[Tensor, "n head d_held"]]
    ) -> Float[Tensor, "n site d_vocab"]:
        """What every lens says, for each position, in the order of `sites`.

        Positions x sites x vocabulary is what this holds: give it few positions at a time.
        """
        parts = [(self.by_layer[layer], held[layer]) for layer in self.by_layer]
        if all(isinstance(lens, HeadLens) for lens, _ in parts):
            return _through_one_unembedding(parts)
        return torch.cat([lens(each) for lens, each in parts], dim=1)

    def quality_of(self, layer: int, head: int) -> dict[str, float]:
        """The figures of one lens, by measure; empty when it was never scored."""
        found = {
            name: by[str(layer)][head]
            for name, by in self.quality.items()
            if head < len(by.get(str(layer), ()))
        }
        return {name: figure for name, figure in found.items() if figure is not None}

    def read(
        self, text: str, *, position: int = -1, top: int = 10, unembedding: bool = False
    ) -> Reading:
        """What every lens says at one position of a text; see `saccade.lenses.reading.read`."""
        from saccade.lenses.reading import read

        return read(self, text, position=position, top=top, unembedding=unembedding)

    def with_quality(self, quality: Quality) -> Lenses:
        """The same lenses with these figures beside them, and no others."""
        return replace(self, quality=quality)

    def adding_quality(self, quality: Quality) -> Lenses:
        """The same lenses with these figures besides those they have.

        A figure replaces the one of the same measure, layer and head; others stay, so that layers
        and heads can be measured one after another.
        """
        merged = {name: dict(by) for name, by in self.quality.items()}
        for name, by in quality.items():
            rows = merged.setdefault(name, {})
            for layer, row in by.items():
                rows[layer] = _over(rows.get(layer, []), row)
        return replace(self, quality=merged)

    def save(self, path: str | Path) -> None:
        """Write them as a folder: safetensors and a JSON manifest."""
        tensors = {"constant": self.constant}
        for layer, lens in self.by_layer.items():
            for name, value in lens.state_dict().items():
                tensors[f"{layer}.{name}"] = value.contiguous()
        files: dict[str, Mapping[str, Tensor]] = {LENSES: tensors}
        if self.statistics is not None:
            sample = self.held_out.tensors() if self.held_out else {}
            files[STATISTICS] = {**self.statistics.sums, **sample}
        manifest = {
            "made": asdict(self.made),
            "layers": {str(layer): self._width(layer) for layer in self.by_layer},
            "quality": self.quality,
        }
        write_folder(path, manifest, files)


def _over(old: Sequence[float | None], new: Sequence[float | None]) -> list[float | None]:
    pairs = zip_longest(old, new)
    return [before if figure is None else figure for before, figure in pairs]


def _through_one_unembedding(parts: list[tuple[Lens, Tensor]]) -> Tensor:
    # One product with the unembedding for all layers: reading it from memory once, not once a
    # layer, halves the time of a reading.
    lenses = [lens for lens, _ in parts if isinstance(lens, HeadLens)]
    hidden = torch.cat(
        [lens.hidden(held) for lens, (_, held) in zip(lenses, parts, strict=True)], 1
    )
    logits = lenses[0].unembed(hidden, None).float()
    start = 0
    for lens in lenses:
        stop = start + len(lens.word_bias)
        logits[:, start:stop] += lens.word_bias
        start = stop
    return logits


def load_lenses(path: str | Path | None, model: LanguageModel) -> Lenses:
    """Load lenses for the model they were made for.

    Args:
        path: a folder, or a name on the hub; None for where `saccade lens fit` puts them.

    Raises:
        LensError: the folder is missing, damaged, or was made for another model or tokenizer.
    """
    path = find_lenses(path, model)
    try:
        manifest = read_manifest(path)
        made = _made(manifest, path)
        _refuse_strangers(made, model, path)
        tensors = read_tensors(path, LENSES)
        stored = read_tensors(path, STATISTICS) if STATISTICS in manifest["files"] else {}
    except StoreError as error:
        raise LensError(str(error), hint=error.hint) from error
    _refuse_incomplete(manifest, tensors, model, path)
    kind = lens_kind(made.kind)
    by_layer = {int(layer): kind.start(model, int(layer)) for layer in manifest["layers"]}
    for layer, lens in by_layer.items():
        prefix = f"{layer}."
        state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        try:
            lens.load_state_dict(state)
        except RuntimeError as error:
            raise LensError(
                f"{path} does not hold a {made.kind} lens for layer {layer} of {model.name}",
                hint="fit the lenses anew with `saccade lens fit`",
            ) from error
        lens.requires_grad_(False)
    return Lenses(
        model=model,
        by_layer=by_layer,
        constant=tensors["constant"].to(model.unembedding.weight.device),
        made=made,
        quality=manifest["quality"],
        statistics=_statistics(stored, tuple(by_layer)) if stored else None,
        held_out=Sample.from_tensors(stored) if "sample.final" in stored else None,
    )


def _statistics(stored: Mapping[str, Tensor], layers: tuple[int, ...]) -> Statistics:
    sums = {name: total for name, total in stored.items() if not name.startswith("sample.")}
    return Statistics(sums=sums, layers=layers)


def read_made(path: str | Path) -> Made:
    """What the lenses in a folder were made for, without loading them."""
    return _made(read_manifest(path), path)


def _made(manifest: dict[str, Any], path: str | Path) -> Made:
    try:
        return Made(**manifest["made"])
    except (KeyError, TypeError) as error:
        raise LensError(
            f"{path} holds no lenses: its manifest does not say what they were made for",
            hint="give a folder written by `saccade lens fit`",
        ) from error


def _refuse_incomplete(
    manifest: dict[str, Any], tensors: Mapping[str, Tensor], model: LanguageModel, path: str | Path
) -> None:
    layers, constant = manifest.get("layers"), tensors.get("constant")
    is_whole = isinstance(layers, dict) and all(layer.isdecimal() for layer in layers)
    is_whole = is_whole and isinstance(manifest.get("quality"), dict)
    if not is_whole or constant is None or constant.shape != (model.d_vocab,):
        raise LensError(
            f"{path} is damaged: expected layers, quality and a constant lens of "
            f"{model.d_vocab} words",
            hint="fit the lenses anew with `saccade lens fit`",
        )


def _refuse_strangers(made: Made, model: LanguageModel, path: str | Path) -> None:
    for what, theirs, ours in (
        ("model", made.model_fingerprint, model.fingerprint),
        ("tokenizer", made.tokenizer_fingerprint, model.tokenizer_fingerprint),
    ):
        if theirs != ours:
            raise LensError(
                f"{path} was fitted for the {what} of {made.model} ({theirs}), "
                f"not for that of {model.name} ({ours})",
                hint=f"fit lenses for this model with `saccade lens fit --model {model.name}`",
            )
