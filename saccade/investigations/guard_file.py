"""A guard on disk: safetensors and a manifest, refused for any other model or lens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from saccade import __version__
from saccade.errors import LensError, StoreError
from saccade.investigations.guard import Guard
from saccade.investigations.guard_discriminant import Discriminant
from saccade.investigations.guard_features import Readout
from saccade.store import cache_dir, fingerprint_text, read_manifest, read_tensors, write_folder

if TYPE_CHECKING:
    from saccade.heads import LanguageModel
    from saccade.lenses.collection import Lenses

GUARD = "guard.safetensors"
_DISCRIMINANT = ("centre", "scale", "mean", "weight")
_READOUT = ("usual", "reader")


def default_guard_path(model: LanguageModel) -> Path:
    """Where the guard of a model is when nobody says otherwise."""
    return cache_dir() / "guards" / model.fingerprint


def lens_fingerprint(lenses: Lenses) -> str:
    """Tells these lenses from any others."""
    states = (each.state_dict().values() for each in lenses.by_layer.values())
    tensors = [lenses.constant, *(value for state in states for value in state)]
    return fingerprint_text(each.detach().float().cpu().numpy().tobytes() for each in tensors)


def save_guard(guard: Guard, path: str | Path) -> None:
    """Write a guard as a folder."""
    tensors: dict[str, Tensor] = {"ordinary": guard.ordinary}
    for name in _DISCRIMINANT:
        tensors[name] = getattr(guard.discriminant, name)
    for name in _READOUT:
        for layer, value in getattr(guard.readout, name).items():
            tensors[f"{layer}.{name}"] = value
    manifest = {
        "guard": {
            "model": guard.lenses.model.name,
            "model_fingerprint": guard.lenses.model.fingerprint,
            "tokenizer_fingerprint": guard.lenses.model.tokenizer_fingerprint,
            "lens_fingerprint": lens_fingerprint(guard.lenses),
            "window": guard.readout.window,
            "stride": guard.readout.stride,
            "layers": list(guard.readout.usual),
            "threshold": guard.threshold,
            "bias": guard.discriminant.bias,
            "n_prompts": len(guard.ordinary),
            "prompts": guard.source,
            "version": __version__,
        }
    }
    write_folder(path, manifest, {GUARD: tensors})


def load_guard(path: str | Path | None, lenses: Lenses) -> Guard:
    """Load a guard for the model and the lenses it was fitted with.

    Args:
        path: a folder; None for where `saccade guard fit` puts it.

    Raises:
        LensError: it is missing, damaged, or was fitted for another model or with other lenses.
    """
    path = Path(path).expanduser() if path is not None else default_guard_path(lenses.model)
    try:
        made = _made(read_manifest(path), path)
        _refuse_strangers(made, lenses, path)
        tensors = read_tensors(path, GUARD)
        parts = {
            name: {layer: tensors[f"{layer}.{name}"] for layer in made["layers"]}
            for name in _READOUT
        }
        discriminant = Discriminant(
            **{name: tensors[name] for name in _DISCRIMINANT}, bias=float(made["bias"])
        )
        readout = Readout(**parts, window=int(made["window"]), stride=int(made["stride"]))
        ordinary, threshold = tensors["ordinary"].double(), float(made["threshold"])
    except StoreError as error:
        raise LensError(str(error), hint="fit a guard with `saccade guard fit`") from error
    except KeyError as error:
        raise LensError(
            f"{path} is damaged: it holds no {error.args[0]}",
            hint="fit the guard anew with `saccade guard fit`",
        ) from error
    return Guard(lenses, readout, discriminant, ordinary, threshold, str(made["prompts"]))


def _made(manifest: dict[str, Any], path: Path) -> dict[str, Any]:
    made = manifest.get("guard")
    if not isinstance(made, dict):
        raise LensError(
            f"{path} holds no guard: its manifest does not say what it was fitted for",
            hint="give a folder written by `saccade guard fit`",
        )
    return made


def _refuse_strangers(made: dict[str, Any], lenses: Lenses, path: Path) -> None:
    model = lenses.model
    for what, theirs, ours in (
        ("the model", made["model_fingerprint"], model.fingerprint),
        ("the tokenizer", made["tokenizer_fingerprint"], model.tokenizer_fingerprint),
        ("the lenses", made["lens_fingerprint"], lens_fingerprint(lenses)),
    ):
        if theirs != ours:
            raise LensError(
                f"{path} was fitted for {what} of {made['model']} ({theirs}), not for these "
                f"({ours})",
                hint="fit a guard for this model and these lenses with `saccade guard fit`",
            )
