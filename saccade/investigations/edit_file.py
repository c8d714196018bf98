"""An edit of a model: changes at their places, kept as a small folder for that model alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from torch import Tensor

from saccade.errors import InterventionError, StoreError
from saccade.heads import Ablate, Change, InjectHead, InjectResidual, Scale, intervene
from saccade.store import read_manifest, read_tensors, write_folder

if TYPE_CHECKING:
    from saccade.heads import LanguageModel, Touched

TENSORS = "edit.safetensors"
KINDS: dict[str, type[Change]] = {kind.__name__.lower(): kind for kind in get_args(Change)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """Changes that are made to a model while it runs; the weights stay as they are."""

    model: str
    model_fingerprint: str
    about: str
    """What it is, in a few words."""
    prompt: str
    """The text it was made for."""
    changes: tuple[Change, ...]

    @contextmanager
    def applied(self, model: LanguageModel) -> Iterator[tuple[Touched, ...]]:
        """Everything the model does inside is done with the edit: see `saccade.heads.intervene`."""
        self.check(model)
        with intervene(model, self.changes) as touched:
            yield touched

    def check(self, model: LanguageModel) -> None:
        """Raise an `InterventionError` unless the edit was made for this model."""
        if self.model_fingerprint != model.fingerprint:
            raise InterventionError(
                f"the edit was made for {self.model} ({self.model_fingerprint}), not for "
                f"{model.name} ({model.fingerprint})",
                hint="make one for this model with `saccade edit`",
            )

    def save(self, path: str | Path) -> None:
        """Write it as a folder: safetensors and a JSON manifest."""
        records, tensors = [], {}
        for number, change in enumerate(self.changes):
            record: dict[str, Any] = {"kind": type(change).__name__.lower()}
            for field in fields(change):
                value = getattr(change, field.name)
                if isinstance(value, Tensor):
                    tensors[f"{number}.{field.name}"] = value.contiguous()
                elif field.name == "positions":
                    record["positions"] = None if value is None else list(value)
                elif value is not None and field.name != "rows":  # an edit is for every text
                    record[field.name] = value
            records.append(record)
        said = {name: getattr(self, name) for name in _SAID} | {"changes": records}
        write_folder(path, {"edit": said}, {TENSORS: tensors} if tensors else {})


def edit_of(
    model: LanguageModel, changes: Sequence[Change], *, prompt: str, about: str | None = None
) -> Edit:
    """Changes as an edit that can be kept.

    Args:
        about: what it is for; without it, what the changes are.
    """
    if not changes:
        raise InterventionError("there is no change to keep", hint="make one first")
    return Edit(
        model=model.name,
        model_fingerprint=model.fingerprint,
        about=about or ", ".join(map(describe, changes)),
        prompt=prompt,
        changes=tuple(changes),
    )


def load_edit(path: str | Path, model: LanguageModel) -> Edit:
    """Load an edit for the model it was made for.

    Raises:
        InterventionError: there is none, it is damaged, or it was made for another model.
    """
    try:
        manifest = read_manifest(path)
        tensors = read_tensors(path, TENSORS) if TENSORS in manifest["files"] else {}
    except StoreError as error:
        raise InterventionError(str(error), hint=error.hint) from error
    try:
        said = manifest["edit"]
        changes = [_change(each, number, tensors) for number, each in enumerate(said["changes"])]
        edit = Edit(**{name: str(said[name]) for name in _SAID}, changes=tuple(changes))
    except (KeyError, TypeError, ValueError) as error:
        raise InterventionError(
            f"{path} holds no edit: its manifest does not say what is changed where",
            hint="give a folder written by `saccade edit --out`",
        ) from error
    edit.check(model)
    return edit


def place_of(change: Change) -> str:
    """Where a change is made, in short."""
    if isinstance(change, InjectResidual):
        return f"layer {change.layer}"
    return f"{change.layer}.{change.head}"


def describe(change: Change) -> str:
    """What a change does and where, in a few words.

    >>> describe(Scale(9, 8, 0.5))
    'scale 9.8 by 0.5'
    """
    match change:
        case Ablate(by=by):
            return f"ablate {place_of(change)} ({by})"
        case Scale(factor=factor):
            return f"scale {place_of(change)} by {factor:g}"
        case InjectHead(strength=strength) | InjectResidual(strength=strength):
            return f"inject into {place_of(change)} with strength {strength:g}"
        case _:
            return f"patch {place_of(change)}"


_SAID = ("model", "model_fingerprint", "about", "prompt")
_NUMBERS = {"layer": int, "head": int, "factor": float, "strength": float, "by": str}


def _change(said: dict[str, Any], number: int, tensors: dict[str, Tensor]) -> Change:
    given: dict[str, Any] = {
        name: make(said[name]) for name, make in _NUMBERS.items() if name in said
    }
    given["positions"] = None if said["positions"] is None else tuple(map(int, said["positions"]))
    for name, tensor in tensors.items():
        of, _, field = name.partition(".")
        if of == str(number):
            given[field] = tensor
    return KINDS[said["kind"]](**given)
