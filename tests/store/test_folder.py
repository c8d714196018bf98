import errno
import json
import os
import re
import shutil

import pytest
import torch

from saccade.errors import StoreError
from saccade.store import folder as folder_module
from saccade.store import read_manifest, read_tensors, write_folder

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
    words = rf"{FILE} is cut short or changed: expected {len(whole)} bytes, found {len(whole) - 1}"
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
    with pytest.raises(StoreError, match=f"{FILE} is missing though the manifest lists it"):
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


@pytest.mark.parametrize("files", [None, [], {"a": 1}, {"../b": {"sha256": "", "bytes": 1}}])
def test_a_list_of_files_that_makes_no_sense_or_leads_elsewhere_is_refused(lens, files):
    edit(lens, files=files)
    with pytest.raises(StoreError, match="its list of files cannot be read"):
        read_manifest(lens)


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
        with pytest.raises(StoreError, match=rf"holds what saccade did not write \({stranger}\)"):
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
