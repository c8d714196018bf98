"""Every JSON file of a run and of a trace, with every one of its fields changed in turn.

A file that was edited is refused in one line, whatever the command does with it; a file without its
digest, as earlier versions wrote it, is refused wherever its value would be used.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from saccade.errors import SaccadeError
from saccade.trace.trace import load_trace, save_trace
from saccade.zoo.recipes.recipe import list_recipes
from saccade.zoo.recipes.run import load_run, result_of, settings_of_run, train_recipe
from saccade.zoo.training import run_state as run
from saccade.zoo.training.checkpoint import load_checkpoint
from saccade.zoo.training.run_folder import RunFolder, read_log

DELETED = object()
WRONG = (
    DELETED,
    None,
    "x",
    "",
    -1,
    -1.5,
    10**30,
    1e999,
    float("nan"),
    True,
    [],
    [None],
    {},
    {"a": []},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A run of the tiny recipe, and a trace of it."""
    from tiny import TINY

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "save_curves", lambda *_, **__: None)
        train_recipe(TINY, folder / "run")
        opened = load_run(folder / "run")
        save_trace(folder / "trace", TINY.trace(opened, "abc")[0])
    return folder


def fields_of(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The place of every field of nested objects."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield (*path, name)
            yield from fields_of(inner, (*path, name))


def changed(values: dict[str, Any], path: tuple[str, ...], to: object) -> dict[str, Any]:
    """A copy with one field changed, or without it."""
    if len(path) > 1:
        return {**values, path[0]: changed(values[path[0]], path[1:], to)}
    kept = {name: value for name, value in values.items() if name != path[0]}
    return kept if to is DELETED else {**kept, path[0]: to}


def use_run(folder: Path) -> None:
    """All that is read from a run: put into results, opened, resumed."""
    from tiny import TINY

    result_of(folder, list_recipes())
    load_run(folder)
    train_recipe(TINY, folder, settings=settings_of_run(TINY, folder), resume=True)


def refusal(use: Callable[[Path], Any], folder: Path, file: Path, values: dict[str, Any]) -> str:
    """What is said of a file with these values, which is then put back; empty if it is accepted."""
    before = file.read_bytes()
    file.write_text(json.dumps(values))
    try:
        use(folder)
    except SaccadeError as error:
        refused = error
    else:
        return ""
    finally:
        file.write_bytes(before)
    assert "\n" not in str(refused) and refused.exit_code in (1, 2) and refused.hint
    return str(refused)


@pytest.fixture
def copied(made, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(run, "save_curves", lambda *_, **__: None)
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "use"),
    [
        ("run/manifest.json", load_run),
        ("run/kept.json", load_run),
        ("run/metrics.json", lambda folder: RunFolder(folder).metrics),
        ("run/best/manifest.json", load_run),
        ("run/checkpoint/manifest.json", lambda folder: load_checkpoint(folder / "checkpoint")),
        ("trace/manifest.json", load_trace),
    ],
)
def test_a_file_that_was_edited_is_refused_in_one_line(copied, file, use):
    whole, folder = json.loads((copied / file).read_text()), copied / Path(file).parts[0]
    for path in fields_of(whole):
        for to in WRONG:
            edited = changed(whole, path, to)
            is_same = json.dumps(edited, sort_keys=True) == json.dumps(whole, sort_keys=True)
            if is_same or (path[-1] == "sha256" and to is DELETED):
                continue
            said = refusal(use, folder, copied / file, edited)
            assert said, f"{file} with {'.'.join(path)} = {to!r} was accepted"


def without_digests(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: without_digests(value) if isinstance(value, dict) and name != "files" else value
        for name, value in values.items()
        if name not in ("sha256", "kept_sha256")
    }


@pytest.mark.parametrize(
    ("file", "use"),
    [
        ("run/manifest.json", load_run),
        ("run/kept.json", load_run),
        ("run/best/manifest.json", load_run),
        ("run/checkpoint/manifest.json", lambda folder: load_checkpoint(folder / "checkpoint")),
        ("trace/manifest.json", load_trace),
    ],
)
def test_a_mistyped_field_is_refused_though_it_has_no_digest(copied, file, use):
    """As earlier versions wrote them: types and ranges alone tell. A text may be any text."""
    whole, folder = json.loads((copied / file).read_text()), copied / Path(file).parts[0]
    if file == "run/kept.json":
        manifest = without_digests(json.loads((folder / "manifest.json").read_text()))
        (folder / "manifest.json").write_text(json.dumps(manifest))
    whole = without_digests(whole)
    assert refusal(use, folder, copied / file, whole) == ""
    for path in fields_of(whole):
        for to in (None, -1, float("nan"), [None], True):
            if may_be(to, value_at(whole, path), path[-1]):
                continue  # nothing tells that it was another
            said = refusal(use, folder, copied / file, changed(whole, path, to))
            assert said, f"{file} with {'.'.join(path)} = {to!r} was accepted"


def may_be(to: object, value: object, name: str) -> bool:
    """Whether a value is one that the field could have had."""
    if to == -1 and type(to) is int:
        return name == "validated" or (type(value) is float and name != "seconds")
    return type(to) is type(value) or (to is None and name == "first_loss")


def value_at(values: Any, path: tuple[str, ...]) -> Any:
    return value_at(values[path[0]], path[1:]) if path else values


def test_a_run_that_was_not_touched_is_accepted(copied):
    use_run(copied / "run")
    assert load_trace(copied / "trace").steps


def test_a_run_that_lost_what_it_kept_is_refused_and_not_given_it_anew(copied):
    """Only a run without a checkpoint may have been killed before it was written."""
    from tiny import TINY

    (copied / "run" / "kept.json").unlink()
    with pytest.raises(SaccadeError, match=r"kept.json was changed after it was written"):
        train_recipe(TINY, copied / "run", resume=True)
    assert not (copied / "run" / "kept.json").exists()


@pytest.mark.parametrize(
    "line",
    ['{"step": -1}', '{"step": "x", "loss": 1}', "[1]", "{", "null", '{"step": 1, "loss": "x"}'],
)
def test_a_line_of_the_log_that_was_changed_is_named_unless_it_is_the_last(made, tmp_path, line):
    lines = (made / "run" / "log.jsonl").read_text().splitlines()
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, line]))
    assert len(read_log(tmp_path / "log.jsonl")) == len(lines)  # a killed process left it so
    (tmp_path / "log.jsonl").write_text("\n".join([lines[0], line, *lines[1:]]))
    with pytest.raises(SaccadeError, match=r"line 2 of .*log.jsonl is damaged"):
        read_log(tmp_path / "log.jsonl")
