import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys

import pytest
import torch

from saccade.errors import StoreError
from saccade.store import folder as folder_module
from saccade.store.folder import read_folder, read_manifest, read_tensors, write_folder

FILE, OTHER = "stats.safetensors", "bias.safetensors"


@pytest.fixture
def tensors():
    return {FILE: {"mean": torch.randn(3, 5)}, OTHER: {"a": torch.randn(7), "b": torch.ones(2)}}


@pytest.fixture
def lens(tmp_path, tensors):
    path = tmp_path / "lens"
    write_folder(path, {"kind": "toy", "tokens": 11, "words": ["é", " Paris"]}, tensors)
    return path


def edit(lens, **changes):
    manifest = json.loads((lens / "manifest.json").read_text(encoding="utf-8"))
    (lens / "manifest.json").write_text(json.dumps(manifest | changes), encoding="utf-8")


def test_a_folder_is_read_back_as_it_was_written(lens, tensors):
    manifest = read_manifest(lens)
    assert manifest["format"] == 1
    assert (manifest["kind"], manifest["tokens"]) == ("toy", 11)
    assert manifest["words"] == ["é", " Paris"]
    assert manifest["files"].keys() == tensors.keys()
    for file, named in tensors.items():
        read = read_tensors(lens, file)
        assert read.keys() == named.keys()
        assert all(torch.equal(read[name], named[name]) for name in named)
        assert manifest["files"][file]["bytes"] == (lens / file).stat().st_size


def test_the_same_contents_make_the_same_bytes(lens, tmp_path, tensors):
    write_folder(
        tmp_path / "twin", {"kind": "toy", "tokens": 11, "words": ["é", " Paris"]}, tensors
    )
    for file in os.listdir(lens):
        assert (lens / file).read_bytes() == (tmp_path / "twin" / file).read_bytes()


@pytest.mark.parametrize("verify", [True, False])
def test_a_truncated_file_is_refused(lens, verify):
    whole = (lens / FILE).read_bytes()
    (lens / FILE).write_bytes(whole[:-1])
    words = rf"{FILE} is truncated or changed: expected {len(whole)} bytes, found {len(whole) - 1}"
    with pytest.raises(StoreError, match=words) as caught:
        read_tensors(lens, FILE, verify=verify)
    assert "again" in caught.value.hint
    assert read_tensors(lens, OTHER)  # the other file is still good


def test_a_flipped_bit_is_refused(lens):
    data = bytearray((lens / FILE).read_bytes())
    data[-1] ^= 1
    (lens / FILE).write_bytes(data)
    with pytest.raises(StoreError, match=f"{re.escape(FILE)} was changed after it was written"):
        read_tensors(lens, FILE)
    assert read_tensors(lens, FILE, verify=False)


def test_a_missing_file_is_refused(lens):
    (lens / FILE).unlink()
    with pytest.raises(StoreError, match=f"{FILE} is missing although the manifest lists it"):
        read_tensors(lens, FILE)


def test_a_file_that_the_manifest_does_not_list_is_refused(lens):
    shutil.copy(lens / FILE, lens / "extra.safetensors")
    with pytest.raises(StoreError, match=r"no file extra\.safetensors: its manifest lists bias"):
        read_tensors(lens, "extra.safetensors")


def test_a_newer_format_is_refused(lens):
    edit(lens, format=2)
    with pytest.raises(StoreError, match="has format 2, this saccade reads up to 1") as caught:
        read_manifest(lens)
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("text", ['{"format": 1, "fi', "", "\udcff", "[1, 2]", '{"kind": 1}'])
def test_a_damaged_manifest_is_refused(lens, text):
    (lens / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StoreError, match=r"manifest\.json is (damaged|no manifest)"):
        read_manifest(lens)


GOOD = {"sha256": "0" * 64, "bytes": 1}


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (None, "files: expected"),
        ([], "files: expected"),
        ({"a": 1}, "files.a: expected an object, found 1"),
        ({"a": {}}, "files.a.sha256: expected a value, found none"),
        ({"a": {**GOOD, "sha256": 5}}, "files.a.sha256: expected a valid string, found 5"),
        ({"a": {**GOOD, "sha256": "0" * 63}}, "files.a.sha256: expected a match of pattern"),
        ({"a": {**GOOD, "sha256": "0" * 64 + "\n"}}, "files.a.sha256: expected a match of"),
        ({"a": {**GOOD, "bytes": "1"}}, "files.a.bytes: expected a valid integer, found '1'"),
        ({"a": {**GOOD, "bytes": -1}}, "files.a.bytes: expected greater than or equal to 0"),
        ({"a": {**GOOD, "bytes": True}}, "files.a.bytes: expected a valid integer, found True"),
        ({"../b": GOOD}, "files: expected plain file names, found '../b'"),
        ({"": GOOD}, "files: expected plain file names, found ''"),
    ],
)
def test_a_list_of_files_that_makes_no_sense_or_leads_elsewhere_is_refused(lens, files, told):
    edit(lens, files=files)
    for read in (read_manifest, read_folder, lambda path: read_tensors(path, FILE)):
        with pytest.raises(StoreError, match=r"manifest\.json is damaged: ") as caught:
            read(lens)
        assert told in str(caught.value) and "\n" not in str(caught.value)


def paths_in(value, path=()):
    """Every place of a JSON value."""
    yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, each in inner:
        yield from paths_in(each, (*path, key))


def read_or_told(path, needs=()):
    try:
        return read_folder(path, needs=needs), ""
    except StoreError as error:
        return None, f"{error} ({error.hint})"


WRONG = [
    None,
    True,
    -1,
    1e300,
    10**30,
    "x",
    "",
    [],
    {},
    [[]],
    {"a": {}},
    "\ud800",
    "a/b",
    float("nan"),
]


def test_a_manifest_with_any_value_changed_is_read_or_refused_in_one_line(lens):
    whole = json.loads((lens / "manifest.json").read_text(encoding="utf-8"))
    places = [path for path in paths_in(whole) if path]
    assert len(places) > 12
    refused = 0
    for place in places:
        for wrong in WRONG:
            changed = inner = json.loads(json.dumps(whole))
            for key in place[:-1]:
                inner = inner[key]
            inner[place[-1]] = wrong
            (lens / "manifest.json").write_text(json.dumps(changed))
            read, told = read_or_told(lens)
            assert (read is None) == bool(told) and "\n" not in told
            refused += bool(told)
            assert read is None or read.tensors.keys() == changed["files"].keys()
    # A value of the caller's own (three keys, two words) may be anything but NaN.
    assert refused > (len(places) - 5) * (len(WRONG) - 3)


def test_no_flipped_bit_of_a_folder_changes_what_is_read(lens, tensors):
    generator = random.Random(5)
    for file in sorted(os.listdir(lens)):
        whole = (lens / file).read_bytes()
        for _ in range(70):
            damaged = bytearray(whole)
            damaged[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
            (lens / file).write_bytes(damaged)
            read, told = read_or_told(lens, needs=tensors)
            assert "\n" not in told
            if read is None:
                continue
            assert file == "manifest.json" and read.tensors.keys() == tensors.keys()
            for name, named in tensors.items():
                assert all(torch.equal(read.tensors[name][each], named[each]) for each in named)
        (lens / file).write_bytes(whole)


def test_numbers_that_could_not_be_read_back_are_not_written(lens, tensors):
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(StoreError, match="expected finite numbers in its manifest") as caught:
            write_folder(lens, {"quality": [wrong]}, tensors)
        assert caught.value.hint
    assert read_manifest(lens)["kind"] == "toy" and os.listdir(lens.parent) == ["lens"]


def test_a_folder_without_a_file_that_is_needed_is_refused(lens):
    with pytest.raises(StoreError, match=r"no file x\.safetensors: its manifest lists bias"):
        read_folder(lens, needs=[FILE, "x.safetensors"])


def test_a_folder_that_is_replaced_while_it_is_read_is_read_anew(lens, tensors, monkeypatch):
    other = {FILE: {"mean": torch.ones(3, 5)}, OTHER: {"a": torch.ones(7), "b": torch.zeros(2)}}
    loads = []

    def load(path, real=folder_module.load_tensors):
        loads.append(path)
        if len(loads) == 1:  # the first file is the old folder's, the second would be the new one's
            write_folder(lens, {"kind": "new"}, other)
        return real(path)

    monkeypatch.setattr(folder_module, "load_tensors", load)
    manifest, read = read_folder(lens)
    assert manifest["kind"] == "new" and len(loads) > 2
    for file, named in other.items():
        assert all(torch.equal(read[file][name], named[name]) for name in named)


def test_a_folder_that_is_always_replaced_while_it_is_read_is_told_in_one_line(
    lens, tensors, monkeypatch
):
    def load(path, real=folder_module.load_tensors):
        write_folder(lens, {"kind": "new"}, tensors)
        return real(lens / path.name)

    monkeypatch.setattr(folder_module, "load_tensors", load)
    with pytest.raises(StoreError, match=r"could not read .*: it was replaced 20 times") as caught:
        read_folder(lens)
    assert caught.value.hint == "wait until the process that writes it is done"


# Two processes write a folder again and again while two others read it; torch is loaded once, and
# then forked. A version's number is in its manifest and in both of its files, one of which only
# even versions have.
STRESS = """
import json, os, sys, time
import torch
from saccade.store import atomic
from saccade.store.folder import read_folder, read_manifest, read_tensors, write_folder

torch.set_num_threads(1)
path, way, swaps = sys.argv[1], sys.argv[2], int(sys.argv[3])
if way == "two steps":
    atomic._exchange = lambda *_: False

def write(version):
    files = {"a.safetensors": {"v": torch.full((500,), version)}}
    if version % 2 == 0:
        files["b.safetensors"] = {"v": torch.full((9,), version)}
    write_folder(path, {"version": version}, files)

def writer(number):
    for k in range(swaps):
        write(1 + number + 2 * (k // 2) * 5 + k % 2)

def reader():
    seen = set()
    while not os.path.exists(path + ".done"):
        manifest, tensors = read_folder(path, needs=["a.safetensors"])
        version = manifest["version"]
        assert len(tensors) == 1 + (version % 2 == 0), (version, list(tensors))
        for named in tensors.values():
            assert (named["v"] == version).all(), (version, named)
        read_manifest(path)
        assert len(set(read_tensors(path, "a.safetensors")["v"].tolist())) == 1
        seen.add(version)
    assert len(seen) > 5, seen

def started(task, *given):
    if (child := os.fork()) == 0:
        try:
            task(*given)
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child

write(0)
readers = [started(reader) for _ in range(2)]
writers = [started(writer, number) for number in range(2)]
failed = [os.waitpid(child, 0)[1] for child in writers]
open(path + ".done", "w").close()
failed += [os.waitpid(child, 0)[1] for child in readers]
os.remove(path + ".done")
sys.exit(any(failed))
"""


@pytest.mark.parametrize("way", ["exchange", "two steps"])
def test_processes_that_write_and_read_one_folder_at_once_never_see_a_mix(tmp_path, way):
    path = tmp_path / "lens"
    command = [sys.executable, "-c", STRESS, str(path), way, "100"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path) == ["lens"]
    manifest, tensors = read_folder(path)
    assert all((named["v"] == manifest["version"]).all() for named in tensors.values())


def test_a_place_without_a_folder_of_ours_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"absent is no folder .*: no such folder"):
        read_manifest(tmp_path / "absent")
    with pytest.raises(StoreError, match=r"no manifest\.json in it"):
        read_manifest(tmp_path)


def test_a_full_disk_leaves_the_old_folder_and_names_the_path_the_user_gave(
    lens, tensors, monkeypatch
):
    before = {file: (lens / file).read_bytes() for file in os.listdir(lens)}

    def full(path, named):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder_module, "write_tensors", full)
    with pytest.raises(StoreError, match=r"could not write .*/lens: no space left on device"):
        write_folder(lens, {"kind": "new"}, tensors)
    assert {file: (lens / file).read_bytes() for file in os.listdir(lens)} == before
    assert os.listdir(lens.parent) == ["lens"]


def test_a_folder_moved_aside_by_a_killed_process_is_still_read(lens, tensors):
    lens.rename(lens.with_name(".lens.old"))
    assert read_manifest(lens)["kind"] == "toy"
    assert torch.equal(read_tensors(lens, FILE)["mean"], tensors[FILE]["mean"])


def test_a_folder_of_ours_is_replaced_even_when_it_is_damaged(lens, tensors):
    (lens / "manifest.json").write_text('{"form')
    write_folder(lens, {"kind": "new"}, {FILE: tensors[FILE]})
    assert read_manifest(lens)["kind"] == "new"
    assert sorted(os.listdir(lens)) == ["manifest.json", FILE]


def test_a_folder_with_somebodys_files_is_not_replaced(lens, tmp_path, tensors):
    (lens / "my_notes.md").write_text("weeks of work")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    for place, stranger in ((lens, "my_notes.md"), (tmp_path / "home", "thesis.tex")):
        with pytest.raises(StoreError, match=rf"holds files that saccade did not write \({stranger}\)"):
            write_folder(place, {"kind": "new"}, tensors)
        assert (place / stranger).exists()


def test_an_empty_folder_may_be_filled(tmp_path, tensors):
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "empty", {}, tensors)
    assert read_manifest(tmp_path / "empty")["files"].keys() == tensors.keys()


@pytest.mark.parametrize("name", ["", "manifest.json", "../x", "a/b", ".hidden", "a\\b"])
def test_a_name_that_is_no_plain_file_name_is_our_own_mistake(tmp_path, name):
    with pytest.raises(AssertionError, match="cannot name a file of tensors"):
        write_folder(tmp_path / "lens", {}, {name: {}})


def test_the_manifests_own_keys_are_not_overwritten(tmp_path):
    with pytest.raises(AssertionError, match="filled in by write_folder"):
        write_folder(tmp_path / "lens", {"format": 3}, {})


def test_a_folder_that_is_moved_aside_while_it_is_read_is_read_where_it_went(tmp_path, monkeypatch):
    path, aside = tmp_path / "lens", tmp_path / ".lens.old"
    write_folder(path, {"version": 1}, {"a.safetensors": {"v": torch.ones(3)}})
    really, moved = folder_module._manifest_of, []

    def manifest_of(place, named):
        if not moved:  # another process is between the two renames of its replacement
            moved.append(os.rename(path, aside))
        return really(place, named)

    monkeypatch.setattr(folder_module, "_manifest_of", manifest_of)
    assert read_folder(path).manifest["version"] == 1


def test_a_manifest_that_cannot_be_read_is_told_in_one_line(lens):
    (lens / "manifest.json").unlink()
    (lens / "manifest.json").mkdir()
    with pytest.raises(
        StoreError, match=r"could not read .*manifest.json: is a directory"
    ) as caught:
        read_manifest(lens)
    assert caught.value.hint == "check the path"


def test_a_folder_that_is_gone_after_it_was_read_is_looked_for_again(lens, tensors, monkeypatch):
    """What was read before is not given out: the place may be the scene of a replacement."""
    real, reads = folder_module._manifest_of, []

    def read_once(folder, path):
        found = real(folder, path)
        reads.append(path)
        if len(reads) == 1:
            shutil.rmtree(lens)
        return found

    monkeypatch.setattr(folder_module, "_manifest_of", read_once)
    with pytest.raises(StoreError, match="no such folder"):
        read_manifest(lens)
    assert len(reads) == 1
