"""All lenses of a model: one per layer, with their provenance and quality."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge
from jaxtyping import Float
from torch import Tensor

from saccade.errors import LensError, StoreError
from saccade.interp.lenses.head_lens import HeadLens
from saccade.interp.lenses.held_out import Sample
from saccade.interp.lenses.lens import Lens
from saccade.interp.lenses.statistics import Statistics
from saccade.store.atomic import cache_dir, settled_folder
from saccade.store.folder import amend_manifest, read_folder, read_manifest, write_folder
from saccade.store.schema import conform

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# Where lenses are stored and found.


def default_lens_path(model: LanguageModel) -> Path:
    """The default path of a model's lenses: in the cache, by the fingerprint of its weights."""
    return cache_dir() / "lenses" / model.fingerprint


def find_lenses(named: str | Path | None, model: LanguageModel) -> Path:
    """The folder of the requested lenses: a folder, a hub name, or the default path.

    Raises:
        LensError: nothing is found; the hint says how to fit lenses.
    """
    fit = f"fit lenses with `saccade lens fit --model {model.name}`"
    if named is None:
        path = default_lens_path(model)
        if not os.path.isdir(settled_folder(path)):
            raise LensError(f"no lenses for {model.name} yet: {path} does not exist", hint=fit)
        return path
    text, path = str(named), Path(named).expanduser()
    # If a process is killed while it replaces the folder, readers still find the old one.
    if os.path.exists(settled_folder(path)):
        return path
    if isinstance(named, Path) or text.startswith((".", "/", "~")) or text.count("/") != 1:
        raise LensError(f"no lenses at {text}: there is no such folder", hint=f"{fit} --out {text}")
    from saccade.interp.lenses.hub import fetch_lenses

    return fetch_lenses(text)


Quality = dict[str, dict[str, list[float | None]]]
LENSES = "lenses.safetensors"
STATISTICS = "statistics.safetensors"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The model a set of lenses was fitted for, and the text; stored in its manifest."""

    model: str
    model_fingerprint: str
    tokenizer_fingerprint: str
    kind: str
    method: str
    objective: str = "kl"
    corpus: str
    corpus_fingerprint: str
    n_tokens: Annotated[int, Ge(0)]
    prefix: tuple[str, ...] | None = None
    """The tokens in front of each window of the text (BOS), as the tokenizer begins a prompt. None
    for lenses of versions that added no prefix."""
    probe: tuple[float, ...] = ()
    """The output of the model on a few tokens (`LanguageModel.probe`)."""
    seed: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Lenses:
    """The lenses of a model, bound to it.

    ``baseline`` is the log of the mean predicted distribution: the baseline lens, with
    which all others are compared.
    """

    model: LanguageModel
    by_layer: dict[int, Lens]
    baseline: Float[Tensor, " d_vocab"]
    provenance: Provenance
    quality: Quality = field(default_factory=dict)
    """Metric -> layer -> one value per head, on held-out text: ``kl``, ``gain`` and others; for
    fidelity ``ablation``, ``alignment`` and ``spearman``. None where it was not measured."""
    stored: Mapping[str, Tensor] = field(default_factory=dict)
    """The named tensors of `statistics` and `held_out`, as they are stored."""
    digest: str | None = None
    """The sha256 of the file they were loaded from."""

    @cached_property
    def statistics(self) -> Statistics | None:
        """The sums the lenses were solved from; needed to merge them with others."""
        sums = {k: v for k, v in self.stored.items() if not k.startswith("sample.")}
        return Statistics.from_tensors(sums, tuple(self.by_layer)) if sums else None

    @cached_property
    def held_out(self) -> Sample | None:
        """The held-out positions the lenses were selected on; also needed to merge."""
        return Sample.from_tensors(self.stored) if "sample.final" in self.stored else None

    @property
    def sites(self) -> list[tuple[int, int]]:
        """(layer, head) of every lens, in the order of `logits`."""
        return [(layer, head) for layer in self.by_layer for head in range(self._width(layer))]

    def _width(self, layer: int) -> int:
        return 1 if self.by_layer[layer].site == "residual" else self.model.layer(layer).n_heads

    @torch.inference_mode()
    def logits(
        self, activation: Mapping[int, Float[Tensor, "n head d_activation"]]
    ) -> Float[Tensor, "n site d_vocab"]:
        """The logits of every lens, for each position, in the order of `sites`.

        The result has positions x sites x vocabulary values: pass few positions at a time.
        """
        parts = [(self.by_layer[layer], activation[layer]) for layer in self.by_layer]
        if all(isinstance(lens, HeadLens) for lens, _ in parts):
            return _through_one_unembedding(parts)
        return torch.cat([lens(each) for lens, each in parts], dim=1)

    def quality_of(self, layer: int, head: int) -> dict[str, float]:
        """The metrics of one lens, by name; empty if it was never scored."""
        found = {
            name: by[str(layer)][head]
            for name, by in self.quality.items()
            if head < len(by.get(str(layer), ()))
        }
        return {name: value for name, value in found.items() if value is not None}

    def with_quality(self, quality: Quality) -> Lenses:
        """The same lenses with these metrics instead of their own."""
        return replace(self, quality=quality)

    def save(self, path: str | Path) -> None:
        """Write them as a folder: safetensors and a JSON manifest.

        Raises:
            LensError: a lens has values that are not finite; nothing is written then.
        """
        tensors = {"baseline": self.baseline}
        for layer, lens in self.by_layer.items():
            for name, value in lens.state_dict().items():
                tensors[f"{layer}.{name}"] = value.contiguous()
        if broken := not_finite(tensors):
            raise LensError(
                f"these lenses are not saved: {broken} is not finite",
                hint="fit them again, with a smaller --learning-rate if they were trained",
            )
        files: dict[str, Mapping[str, Tensor]] = {LENSES: tensors}
        if self.statistics is not None:
            sample = self.held_out.tensors() if self.held_out else {}
            files[STATISTICS] = {**self.statistics.sums, **sample}
        manifest = {
            "provenance": asdict(self.provenance),
            "layers": {str(layer): self._width(layer) for layer in self.by_layer},
            "quality": self.quality,
        }
        write_folder(path, manifest, files)


def not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor with a NaN or infinite value."""
    for name, value in tensors.items():
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            return name
    return None


def add_quality(path: str | Path, lenses: Lenses, quality: Quality) -> None:
    """Store metrics with the lenses in a folder, if these are still the lenses that were measured.

    A value replaces the one for the same metric, layer and head; others stay, so that layers and
    heads can be measured one after another.

    Raises:
        LensError: the folder no longer contains ``lenses``, which were loaded from it.
    """

    def amend(manifest: dict[str, Any]) -> dict[str, Any]:
        if manifest["files"].get(LENSES, {}).get("sha256") != lenses.digest:
            raise LensError(
                f"the metrics are not saved: {path} was fitted again while they were measured",
                hint="measure the new lenses, or give a folder that no other process writes to",
            )
        return {"quality": _merged(_told(manifest, path).quality, quality)}

    try:
        amend_manifest(path, amend)
    except StoreError as error:
        raise LensError(str(error), hint=error.hint) from error


def _merged(old: Quality, new: Quality) -> Quality:
    merged = {name: dict(by) for name, by in old.items()}
    for name, by in new.items():
        rows = merged.setdefault(name, {})
        for layer, row in by.items():
            rows[layer] = _over(rows.get(layer, []), row)
    return merged


def _over(old: Sequence[float | None], new: Sequence[float | None]) -> list[float | None]:
    pairs = zip_longest(old, new)
    return [before if after is None else after for before, after in pairs]


def _through_one_unembedding(parts: list[tuple[Lens, Tensor]]) -> Tensor:
    # One product with the unembedding for all layers: reading it from memory once, not once
    # per layer, halves the time of a reading.
    lenses = [lens for lens, _ in parts if isinstance(lens, HeadLens)]
    hidden = torch.cat(
        [lens.hidden(activation) for lens, (_, activation) in zip(lenses, parts, strict=True)], 1
    )
    logits = lenses[0].unembed(hidden, None).float()
    start = 0
    for lens in lenses:
        stop = start + len(lens.token_bias)
        logits[:, start:stop] += lens.token_bias
        start = stop
    return logits


def load_lenses(path: str | Path | None, model: LanguageModel) -> Lenses:
    """Load lenses for the model they were fitted for.

    Args:
        path: a folder, or a name on the hub; None for the default path of `saccade lens fit`.

    Raises:
        LensError: the folder is missing, damaged, or was fitted for another model or tokenizer.
    """
    from saccade.interp.lenses.lens import lens_kind

    path = find_lenses(path, model)
    try:
        manifest, files = read_folder(path, needs=[LENSES])
        told = _told(manifest, path)
        _refuse_strangers(told.provenance, model, path)
        tensors = {_RENAMED.get(name, name): each for name, each in files[LENSES].items()}
        stored = files.get(STATISTICS, {})
    except StoreError as error:
        raise LensError(str(error), hint=error.hint) from error
    provenance = told.provenance
    kind = lens_kind(provenance.kind)
    _refuse_incomplete(told, kind, {**stored, **tensors}, model, path)
    by_layer = {int(layer): kind.start(model, int(layer)) for layer in told.layers}
    for layer, lens in by_layer.items():
        prefix = f"{layer}."
        state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        if "token_bias" in lens.state_dict() and "word_bias" in state:  # its old name
            state["token_bias"] = state.pop("word_bias")
        try:
            lens.load_state_dict(state)
        except RuntimeError as error:
            raise LensError(
                f"{path} does not contain a {provenance.kind} lens for layer {layer} of "
                f"{model.name}",
                hint="fit the lenses again with `saccade lens fit`",
            ) from error
        lens.requires_grad_(False)
    return Lenses(
        model=model,
        by_layer=by_layer,
        baseline=tensors["baseline"].to(model.unembedding.weight.device),
        provenance=provenance,
        quality=told.quality,
        stored=stored,
        digest=manifest["files"][LENSES]["sha256"],
    )


def lenses_if_fitted(path: str | Path | None, model: LanguageModel) -> Lenses | None:
    """The lenses at a path, or those at the default path; None if nothing is fitted there yet."""
    if path is None and not os.path.isdir(settled_folder(default_lens_path(model))):
        return None
    return load_lenses(path, model)


def read_provenance(path: str | Path) -> Provenance:
    """The provenance of the lenses in a folder, without loading them."""
    return _told(read_manifest(path), path).provenance


# Old names, in folders written before these were renamed.
_RENAMED = {"made": "provenance", "constant": "baseline"}


@dataclass(frozen=True, kw_only=True)
class _Told:
    """The content of a lens manifest, without the list of files."""

    provenance: Provenance
    layers: dict[str, Annotated[int, Ge(1)]]
    """Layer -> number of lenses."""
    quality: Quality


def _told(manifest: dict[str, Any], path: str | Path) -> _Told:
    renamed = {_RENAMED.get(name, name): value for name, value in manifest.items()}
    if "provenance" not in renamed:
        raise LensError(
            f"{path} contains no lenses: its manifest has no provenance",
            hint="give a folder written by `saccade lens fit`",
        )
    told = {name: value for name, value in renamed.items() if name not in ("format", "files")}
    return conform(_Told, told, where=path)


def _refuse_incomplete(
    told: _Told,
    kind: type[Lens],
    tensors: Mapping[str, Tensor],
    model: LanguageModel,
    path: str | Path,
) -> None:
    again = "fit the lenses again with `saccade lens fit`"
    heads = {str(at.index): at.n_heads for at in model.layers}
    is_residual = kind.site == "residual"
    widths = {layer: 1 if is_residual else heads.get(layer) for layer in told.layers}
    baseline = tensors.get("baseline")
    if widths != told.layers or not widths.keys() <= heads.keys():
        raise LensError(
            f"{path} is damaged: its layers have {told.layers} lenses, but {model.name} has "
            f"heads {heads}",
            hint=again,
        )
    rows = [(layer, len(row)) for by in told.quality.values() for layer, row in by.items()]
    if any(layer not in widths or n > told.layers[layer] for layer, n in rows):
        raise LensError(f"{path} is damaged: its metrics belong to other lenses", hint=again)
    if baseline is None or baseline.shape != (model.d_vocab,):
        raise LensError(
            f"{path} is damaged: expected a mean prediction over {model.d_vocab} tokens", hint=again
        )
    if broken := not_finite(tensors):
        raise LensError(f"{path} cannot be read: {broken} is not finite", hint=again)


def _refuse_strangers(provenance: Provenance, model: LanguageModel, path: str | Path) -> None:
    again = f"fit lenses for this model with `saccade lens fit --model {model.name}`"
    if provenance.prefix is None:
        raise LensError(
            f"{path} was fitted by an earlier version of saccade, on text without the tokens that "
            "the tokenizer puts in front of a prompt",
            hint=again,
        )
    for what, theirs, ours in (
        ("model", provenance.model_fingerprint, model.fingerprint),
        ("tokenizer", provenance.tokenizer_fingerprint, model.tokenizer_fingerprint),
    ):
        if theirs != ours:
            raise LensError(
                f"{path} was fitted for the {what} of {provenance.model} ({theirs}), "
                f"not for that of {model.name} ({ours})",
                hint=again,
            )
    if provenance.prefix != model.prefix:
        raise LensError(
            f"{path} was fitted on text that begins with {list(provenance.prefix)}, but "
            f"{model.name} puts {list(model.prefix)} in front of a prompt",
            hint=again,
        )
    if provenance.probe and not model.computes_alike(provenance.probe):
        raise LensError(
            f"{path} was fitted when {provenance.model} gave other outputs: on a few tokens "
            f"the entropy of its predictions was {provenance.probe}, now it is {model.probe}",
            hint=again,
        )


def share_explained(quality: Mapping[str, float]) -> float | None:
    """The share of the baseline lens's KL that a lens removes; None if it was never scored.

    >>> share_explained({"kl": 3.0, "gain": 1.0})
    0.25
    """
    if not {"kl", "gain"} <= quality.keys():
        return None
    baseline = quality["kl"] + quality["gain"]
    return quality["gain"] / baseline if baseline > 0 else 0.0
