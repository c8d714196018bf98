"""An edit of a model: changes at their places, kept as a small folder for that model alone."""

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
    """One change as the manifest of an edit has it; what is put somewhere is in the tensors."""

    kind: Literal["ablate", "scale", "patch", "injecthead", "injectresidual"]
    layer: Index
    head: Index | None = None
    by: Literal["zero", "mean", "resample"] | None = None
    factor: Number | None = None
    strength: Number | None = None
    positions: tuple[Annotated[int, Ge(-(2**31)), Lt(2**31)], ...] | None


@dataclass(frozen=True, kw_only=True)
class EditManifest:
    """What the manifest of an edit says of it."""

    model: str
    model_fingerprint: Annotated[str, MinLen(1)]
    about: str
    prompt: str
    changes: Annotated[tuple[ChangeRecord, ...], MinLen(1)]


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
        """Everything the model does inside is done with the edit; see `intervene`."""
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
        InterventionError: there is none, it is damaged, or it was made for another model.
    """
    try:
        manifest, files = read_folder(path)
        if not isinstance(manifest.get("edit"), dict):
            raise InterventionError(
                f"{path} holds no edit: its manifest does not say what is changed where",
                hint="give a folder written by `saccade edit --out`",
            )
        said = conform(EditManifest, manifest["edit"], where=path)
        tensors = files.get(TENSORS, {})
    except StoreError as error:
        raise InterventionError(str(error), hint=error.hint) from error
    try:
        changes = [_change(each, number, tensors) for number, each in enumerate(said.changes)]
        _refuse_left_over(said, tensors)
        edit = Edit(
            model=said.model,
            model_fingerprint=said.model_fingerprint,
            about=said.about,
            prompt=said.prompt,
            changes=tuple(changes),
        )
        edit.check(model)
        for change in changes:
            check_change(model, change)
    except InterventionError as error:
        raise InterventionError(f"{path}: {error}", hint=error.hint) from error
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
_TENSOR_FIELDS = ("value", "z", "vector")


def _change(record: ChangeRecord, number: int, tensors: dict[str, Tensor]) -> Change:
    kind = KINDS[record.kind]
    names = {field.name for field in fields(kind)}
    given = {name: value for name, value in asdict(record).items() if value is not None}
    del given["kind"]
    # An ablation by zero is the one change of its kind that has no tensor.
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
        put = given.get(name)
        if put is not None and not (put.is_floating_point() and put.dim()):
            raise InterventionError(
                f"change {number} is damaged: expected vectors of floats in its {name}, found "
                f"{put.dtype} of shape {tuple(put.shape)}",
                hint=_AGAIN,
            )
    return kind(**given)


def _refuse_left_over(said: EditManifest, tensors: dict[str, Tensor]) -> None:
    known = {f"{n}.{name}" for n in range(len(said.changes)) for name in _TENSOR_FIELDS}
    if strange := sorted(tensors.keys() - known):
        raise InterventionError(
            f"expected tensors of {len(said.changes)} changes, found {strange[0]} too", hint=_AGAIN
        )
