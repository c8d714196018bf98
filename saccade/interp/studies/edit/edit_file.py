"""An edit of a model: a list of changes, saved as a small folder for that model only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from annotated_types import Ge, Le, Lt, MinLen
from torch import Tensor

from saccade.errors import InterventionError, StoreError
from saccade.interp.heads.intervene import (
    Ablate,
    Change,
    InjectHead,
    InjectResidual,
    Scale,
    check_change,
    intervene,
)
from saccade.store.folder import read_folder, write_folder
from saccade.store.schema import conform

if TYPE_CHECKING:
    from saccade.interp.heads.intervene import Touched
    from saccade.interp.heads.model import LanguageModel

TENSORS = "edit.safetensors"
KINDS: dict[str, type[Change]] = {kind.__name__.lower(): kind for kind in get_args(Change)}
_AGAIN = "make the edit again with `saccade edit --out`"

Index = Annotated[int, Ge(0), Lt(2**31)]
Number = Annotated[float, Ge(-1e30), Le(1e30)]


@dataclass(frozen=True, kw_only=True)
class ChangeRecord:
    """One change in the manifest of an edit; its vectors are in the tensor file."""

    kind: Literal["ablate", "scale", "patch", "injecthead", "injectresidual"]
    layer: Index
    head: Index | None = None
    by: Literal["zero", "mean", "resample"] | None = None
    factor: Number | None = None
    strength: Number | None = None
    positions: tuple[Annotated[int, Ge(-(2**31)), Lt(2**31)], ...] | None


@dataclass(frozen=True, kw_only=True)
class EditManifest:
    """The manifest of an edit."""

    model: str
    model_fingerprint: Annotated[str, MinLen(1)]
    about: str
    prompt: str
    changes: Annotated[tuple[ChangeRecord, ...], MinLen(1)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Edit:
    """Changes applied to a model while it runs; the weights are not modified."""

    model: str
    model_fingerprint: str
    about: str
    """A short description."""
    prompt: str
    """The text it was made for."""
    changes: tuple[Change, ...]

    @contextmanager
    def applied(self, model: LanguageModel) -> Iterator[tuple[Touched, ...]]:
        """Context in which the model runs with the edit; see `intervene`."""
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
        manifest = {name: getattr(self, name) for name in _DESCRIPTION} | {"changes": records}
        write_folder(path, {"edit": manifest}, {TENSORS: tensors} if tensors else {})


def edit_of(
    model: LanguageModel, changes: Sequence[Change], *, prompt: str, about: str | None = None
) -> Edit:
    """Changes as an edit that can be saved.

    Args:
        about: a short description; by default, the list of changes.
    """
    if not changes:
        raise InterventionError(
            "an edit needs at least one change, got none", hint="add a change first"
        )
    for change in changes:
        check_change(model, change)
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
        InterventionError: there is no edit, it is damaged, or it was made for another model.
    """
    try:
        manifest, files = read_folder(path)
        if not isinstance(manifest.get("edit"), dict):
            raise InterventionError(
                f"{path} holds no edit: its manifest has no entry 'edit'",
                hint="give a folder written by `saccade edit --out`",
            )
        stored = conform(EditManifest, manifest["edit"], where=path)
        tensors = files.get(TENSORS, {})
    except StoreError as error:
        raise InterventionError(str(error), hint=error.hint) from error
    try:
        changes = [_change(each, number, tensors) for number, each in enumerate(stored.changes)]
        _refuse_left_over(stored, tensors)
        edit = Edit(
            model=stored.model,
            model_fingerprint=stored.model_fingerprint,
            about=stored.about,
            prompt=stored.prompt,
            changes=tuple(changes),
        )
        edit.check(model)
        for change in changes:
            check_change(model, change)
    except InterventionError as error:
        raise InterventionError(f"{path}: {error}", hint=error.hint) from error
    return edit


def place_of(change: Change) -> str:
    """Where a change is made: a head (9.8) or a layer."""
    if isinstance(change, InjectResidual):
        return f"layer {change.layer}"
    return f"{change.layer}.{change.head}"


def describe(change: Change) -> str:
    """A short description of a change.

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


_DESCRIPTION = ("model", "model_fingerprint", "about", "prompt")
_TENSOR_FIELDS = ("value", "z", "vector")


def _change(record: ChangeRecord, number: int, tensors: dict[str, Tensor]) -> Change:
    kind = KINDS[record.kind]
    names = {field.name for field in fields(kind)}
    given = {name: value for name, value in asdict(record).items() if value is not None}
    del given["kind"]
    # An ablation by zero is the only ablation without a tensor.
    given |= {
        name: tensors[f"{number}.{name}"]
        for name in _TENSOR_FIELDS
        if f"{number}.{name}" in tensors
    }
    needed = names - {"positions", "rows"} - ({"value"} if record.by == "zero" else set())
    if given.keys() - {"positions"} != needed:
        missing, extra = sorted(needed - given.keys()), sorted(given.keys() - names)
        found = f"lacks {missing[0]}" if missing else f"has {', '.join(extra) or 'a value'} too"
        raise InterventionError(
            f"change {number} is damaged: expected {', '.join(sorted(needed))} for {record.kind}, "
            f"but it {found}",
            hint=_AGAIN,
        )
    for name in _TENSOR_FIELDS:
        tensor = given.get(name)
        if tensor is not None and not (tensor.is_floating_point() and tensor.dim()):
            raise InterventionError(
                f"change {number} is damaged: expected vectors of floats in its {name}, found "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}",
                hint=_AGAIN,
            )
    return kind(**given)


def _refuse_left_over(stored: EditManifest, tensors: dict[str, Tensor]) -> None:
    known = {f"{n}.{name}" for n in range(len(stored.changes)) for name in _TENSOR_FIELDS}
    if extra := sorted(tensors.keys() - known):
        raise InterventionError(
            f"expected tensors of {len(stored.changes)} changes, found {extra[0]} too", hint=_AGAIN
        )
