"""A guard on disk: safetensors and a manifest, refused for any other model or lens.

A guard decides what passes, so a file that was changed in any field is refused: a bias of -100
would make every prompt ordinary. The manifest has a checksum over itself and all tensors; the
ranges of its values are checked too, and the threshold is recomputed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge, Gt, Le, Lt, MinLen
from torch import Tensor

from saccade import __version__
from saccade.errors import LensError, StoreError
from saccade.interp.studies.guard.features import Discriminant, Readout
from saccade.interp.studies.guard.guard import MOST_SCORE, Guard, threshold_for
from saccade.store.atomic import cache_dir
from saccade.store.fingerprint import fingerprint_text
from saccade.store.folder import read_folder, write_folder
from saccade.store.schema import conform

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel
    from saccade.interp.lenses.lens_set import Lenses

GUARD = "guard.safetensors"
_DISCRIMINANT = ("centre", "scale", "mean", "weight")
_READOUT = ("usual", "reader")
_AGAIN = "fit the guard again with `saccade guard fit`"

Name = Annotated[str, MinLen(1)]
Score = Annotated[float, Ge(-MOST_SCORE), Le(MOST_SCORE)]


@dataclass(frozen=True, kw_only=True)
class GuardManifest:
    """The manifest of a guard."""

    model: str
    model_fingerprint: Name
    tokenizer_fingerprint: Name
    lens_fingerprint: Name
    window: Annotated[int, Ge(1)]
    stride: Annotated[int, Ge(1)]
    layers: Annotated[tuple[Annotated[int, Ge(0)], ...], MinLen(1)]
    threshold: Score
    false_alarms: Annotated[float, Gt(0), Lt(1)]
    bias: Score
    n_prompts: Annotated[int, Ge(1)]
    prompts: str
    """Where the ordinary prompts came from."""
    version: str
    checksum: str = ""
    """Of all other fields and of every tensor."""


def default_guard_path(model: LanguageModel) -> Path:
    """The default folder of the guard of a model."""
    return cache_dir() / "guards" / model.fingerprint


def lens_fingerprint(lenses: Lenses) -> str:
    """A fingerprint of the weights of these lenses."""
    states = (each.state_dict().values() for each in lenses.by_layer.values())
    tensors = [lenses.baseline, *(value for state in states for value in state)]
    return fingerprint_text(each.detach().float().cpu().numpy().tobytes() for each in tensors)


def save_guard(guard: Guard, path: str | Path) -> None:
    """Write a guard as a folder."""
    tensors: dict[str, Tensor] = {"ordinary": guard.ordinary}
    for name in _DISCRIMINANT:
        tensors[name] = getattr(guard.discriminant, name)
    for name in _READOUT:
        for layer, value in getattr(guard.readout, name).items():
            tensors[f"{layer}.{name}"] = value
    manifest = GuardManifest(
        model=guard.lenses.model.name,
        model_fingerprint=guard.lenses.model.fingerprint,
        tokenizer_fingerprint=guard.lenses.model.tokenizer_fingerprint,
        lens_fingerprint=lens_fingerprint(guard.lenses),
        window=guard.readout.window,
        stride=guard.readout.stride,
        layers=tuple(guard.readout.usual),
        threshold=guard.threshold,
        false_alarms=guard.false_alarms,
        bias=guard.discriminant.bias,
        n_prompts=len(guard.ordinary),
        prompts=guard.source,
        version=__version__,
    )
    manifest = replace(manifest, checksum=checksum_of(manifest, tensors))
    write_folder(path, {"guard": asdict(manifest)}, {GUARD: tensors})


def checksum_of(manifest: GuardManifest, tensors: Mapping[str, Tensor]) -> str:
    """Checksum over everything that determines the verdicts of a guard."""
    fields = json.dumps(asdict(replace(manifest, checksum="")), sort_keys=True)
    contents = (
        f"\n{name} {tuple(each.shape)} ".encode() + each.detach().double().cpu().numpy().tobytes()
        for name, each in sorted(tensors.items())
    )
    return fingerprint_text([fields.encode(), *contents])


def load_guard(path: str | Path | None, lenses: Lenses) -> Guard:
    """Load a guard for the model and the lenses it was fitted with.

    Args:
        path: a folder; None for where `saccade guard fit` writes it.

    Raises:
        LensError: it is missing, damaged or invalid, or was fitted for another model or with
            other lenses.
    """
    path = Path(path).expanduser() if path is not None else default_guard_path(lenses.model)
    try:
        whole, files = read_folder(path)
        manifest = _manifest_of(whole, path)
        _refuse_other_model(manifest, lenses, path)
        tensors = files.get(GUARD, {})  # without them the checksum differs
    except StoreError as error:
        raise LensError(str(error), hint="fit a guard with `saccade guard fit`") from error
    if manifest.checksum != (found := checksum_of(manifest, tensors)):
        raise LensError(
            f"{path} was changed after the guard was fitted: expected checksum "
            f"{manifest.checksum!r}, found {found!r}",
            hint=_AGAIN,
        )
    _refuse_other_shapes(manifest, tensors, lenses, path)
    try:
        guard = _guard(manifest, tensors, lenses)
    except LensError as error:
        raise LensError(f"{path}: {error}", hint=error.hint) from error
    _refuse_other_threshold(guard, path)
    return guard


def _manifest_of(whole: dict[str, Any], path: Path) -> GuardManifest:
    entry = whole.get("guard")
    if not isinstance(entry, dict):
        raise LensError(
            f"{path} holds no guard: its manifest has no entry 'guard'",
            hint="give a folder written by `saccade guard fit`",
        )
    return conform(GuardManifest, entry, where=path)


def _guard(manifest: GuardManifest, tensors: Mapping[str, Tensor], lenses: Lenses) -> Guard:
    parts = {
        name: {layer: tensors[f"{layer}.{name}"] for layer in manifest.layers} for name in _READOUT
    }
    return Guard(
        lenses=lenses,
        readout=Readout(**parts, window=manifest.window, stride=manifest.stride),
        discriminant=Discriminant(
            **{name: tensors[name] for name in _DISCRIMINANT}, bias=manifest.bias
        ),
        ordinary=tensors["ordinary"].double(),
        threshold=manifest.threshold,
        false_alarms=manifest.false_alarms,
        source=manifest.prompts,
    )


def _refuse_other_shapes(
    manifest: GuardManifest, tensors: Mapping[str, Tensor], lenses: Lenses, path: Path
) -> None:
    """A guard reads every head of its layers, with the same number of features for each."""
    known = set(manifest.layers) <= set(lenses.by_layer)
    if not known or len(set(manifest.layers)) != len(manifest.layers):
        raise LensError(
            f"{path} does not fit the lenses: expected layers of {list(lenses.by_layer)}, found "
            f"{list(manifest.layers)}",
            hint=_AGAIN,
        )
    readers = [each for name, each in tensors.items() if name.endswith(".reader")]
    n_numbers = next((each.shape[-1] for each in readers if each.dim() == 3), 1)
    expected: dict[str, tuple[int, ...]] = {"ordinary": (manifest.n_prompts,)}
    n_features = 0
    for layer in manifest.layers:
        at = lenses.model.layer(layer)
        expected[f"{layer}.usual"] = (at.n_heads, at.d_head)
        expected[f"{layer}.reader"] = (at.n_heads, at.d_head, n_numbers)
        n_features += at.n_heads * n_numbers
    expected |= dict.fromkeys(_DISCRIMINANT, (n_features,))
    found = {k: tuple(each.shape) for k, each in tensors.items() if each.is_floating_point()}
    wrong = [name for name in expected | found if expected.get(name) != found.get(name)]
    if wrong:
        name = wrong[0]
        raise LensError(
            f"{path} does not fit the lenses: expected floats of shape {expected.get(name)} for "
            f"{name}, found {found.get(name, 'none')}",
            hint=_AGAIN,
        )


def _refuse_other_threshold(guard: Guard, path: Path) -> None:
    expected = threshold_for(guard.ordinary, guard.false_alarms)
    if abs(guard.threshold - expected) > 1e-6 * max(1.0, abs(expected)):
        raise LensError(
            f"{path} is damaged: expected a threshold of {expected:g}, which reports "
            f"{guard.false_alarms:g} of its ordinary prompts, found {guard.threshold:g}",
            hint=_AGAIN,
        )


def _refuse_other_model(manifest: GuardManifest, lenses: Lenses, path: Path) -> None:
    model = lenses.model
    for what, theirs, ours in (
        ("the model", manifest.model_fingerprint, model.fingerprint),
        ("the tokenizer", manifest.tokenizer_fingerprint, model.tokenizer_fingerprint),
        ("the lenses", manifest.lens_fingerprint, lens_fingerprint(lenses)),
    ):
        if theirs != ours:
            raise LensError(
                f"{path} was fitted for {what} of {manifest.model} ({theirs}), not for "
                f"these ({ours})",
                hint="fit a guard for this model and these lenses with `saccade guard fit`",
            )
