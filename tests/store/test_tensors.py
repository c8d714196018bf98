import os
import subprocess
import sys

import pytest
import torch
from safetensors import SafetensorError

from saccade.errors import StoreError
from saccade.store import folder
from saccade.store.folder import load_tensors, save_tensors

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5), (7,), (), (0, 3)], ids=str)
def test_what_is_read_back_is_what_was_written(path, dtype, shape):
    written = (torch.randn(shape) * 11).to(dtype)
    save_tensors(path, {"a": written})
    torch.testing.assert_close(load_tensors(path)["a"], written, rtol=0, atol=0)


def test_the_odd_values_of_floats_survive(path):
    written = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    save_tensors(path, {"a": written})
    read = load_tensors(path)["a"]
    assert torch.equal(read.view(torch.int32), written.view(torch.int32))


def test_views_transposes_and_shared_memory_are_written_as_they_look(path):
    base = torch.randn(3, 5)
    written = {"whole": base, "same": base, "turned": base.T, "part": base[1:, ::2]}
    written["learnt"] = torch.nn.Parameter(base[0])
    save_tensors(path, written)
    read = load_tensors(path)
    assert read.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(read[name], tensor)
        assert not read[name].requires_grad


def test_only_the_named_tensors_are_read(path):
    save_tensors(path, {"a": torch.ones(2), "b": torch.ones(3)}, metadata={"who": "me"})
    assert list(load_tensors(path, names=["b"])) == ["b"]
    with pytest.raises(StoreError, match=r"holds no tensor named c; it holds a, b"):
        load_tensors(path, names=["a", "c"])


@pytest.mark.skipif(sys.platform == "win32", reason="modes mean something else there")
def test_a_file_is_as_readable_for_others_as_any_new_file(path):
    (plain := path.with_name("plain.txt")).write_text("x")
    save_tensors(path, {"a": torch.ones(3)})
    assert path.stat().st_mode == plain.stat().st_mode


@pytest.mark.parametrize("kept", [0, 5, 60, -1])
def test_a_truncated_file_is_refused_by_name(path, kept):
    save_tensors(path, {"a": torch.randn(7, 11)})
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(StoreError, match=r"x\.safetensors is damaged") as caught:
        load_tensors(path)
    assert "again" in caught.value.hint


def test_something_else_is_refused(path, tmp_path):
    path.write_bytes(b"\x80\x04not tensors at all" * 7)
    with pytest.raises(StoreError, match="is damaged"):
        load_tensors(path)
    with pytest.raises(StoreError, match="there is no file"):
        load_tensors(tmp_path / "absent.safetensors")
    with pytest.raises(StoreError, match=r"could not read|is damaged"):
        load_tensors(tmp_path)


def test_a_full_disk_is_told_and_the_old_file_stays(path, monkeypatch):
    save_tensors(path, {"a": torch.ones(3)})

    def full(named, file, metadata):
        file.write_bytes(b"half")
        raise folder.SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(folder, "save_file", full)
    with pytest.raises(StoreError, match=r"x\.safetensors: no space left on device"):
        save_tensors(path, {"a": torch.zeros(3)})
    assert torch.equal(load_tensors(path)["a"], torch.ones(3))
    assert os.listdir(path.parent) == [path.name]


LIMITED = """
import resource, signal, sys, torch
from saccade.errors import StoreError
from saccade.store.folder import save_tensors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails instead of killing us
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_tensors(sys.argv[1], {"a": torch.zeros(100, 1000)})
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is enforced differently elsewhere")
def test_a_write_that_the_system_really_refuses_leaves_the_old_file(path):
    save_tensors(path, {"a": torch.ones(3)})
    command = [sys.executable, "-c", LIMITED, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"could not write {path}: file too large (errno 27, EFBIG)" in result.stdout
    assert torch.equal(load_tensors(path)["a"], torch.ones(3))
    assert os.listdir(path.parent) == [path.name]


def test_a_tensor_that_shares_no_memory_is_written_without_a_copy():
    one = torch.arange(6.0)
    stored = folder._storable({"one": one, "same": one, "part": one[2:4]})
    assert stored["one"].data_ptr() == one.data_ptr()
    assert len({each.untyped_storage().data_ptr() for each in stored.values()}) == 3


def test_an_error_of_the_format_itself_stays_what_it_is():
    odd = SafetensorError("header too large")
    assert folder._as_os_error(odd) is odd
    told = folder._as_os_error(SafetensorError("I/O error: No space left (os error 28)"))
    assert isinstance(told, OSError) and (told.errno, told.strerror) == (28, "No space left")
