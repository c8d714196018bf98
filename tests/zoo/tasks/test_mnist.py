"""IDX files are read or refused; MNIST comes as rows."""

import gzip
import struct

import pytest
import torch

from saccade.errors import TaskError
from saccade.zoo.tasks.mnist import Digits, as_pixels, read_idx, read_mnist, row_batches


def idx(*shape, kind=0x08, cut=0):
    values = bytes(k % 251 for k in range(int(torch.tensor(shape).prod())))
    whole = struct.pack(">HBB", 0, kind, len(shape)) + struct.pack(f">{len(shape)}I", *shape)
    return (whole + values)[: -cut or None]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_an_idx_file_is_read_packed_or_not(tmp_path, pack):
    (path := tmp_path / "x").write_bytes(pack(idx(3, 5, 7)))
    found = read_idx(path)
    assert found.shape == (3, 5, 7) and found.dtype == torch.uint8
    assert found.flatten().tolist() == [k % 251 for k in range(105)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is no IDX file: it begins with nothing"),
        (b"PK\3\4 a zip", "is no IDX file: it begins with 50 4b 03 04"),
        (idx(3, 5, kind=0x0D), "values of type 0x0d, expected 0x08"),
        (
            idx(3, 5, cut=2),
            r"cut short or too long: expected 15 values of shape \(3, 5\), found 13",
        ),
        (idx(3, 5)[:7], "cut short or too long"),
        (idx(3, 5) + b"more", "found 19"),
        (gzip.compress(idx(3, 5), mtime=0)[:-9], "broken archive"),
    ],
)
def test_what_is_no_whole_idx_file_is_refused(tmp_path, data, said):
    (path := tmp_path / "x").write_bytes(data)
    with pytest.raises(TaskError, match=said):
        read_idx(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(TaskError, match=r"could not read .*nowhere: No such file"):
        read_idx(tmp_path / "nowhere")


@pytest.fixture(scope="module")
def test_part(data_with):
    return read_mnist("test", data_with("mnist"))


def test_mnist_is_what_its_makers_say(data_with, test_part):
    data = data_with("mnist")
    assert test_part.images.shape == (10_000, 28, 28)
    # From the published test labels: how often each digit occurs.
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert test_part.labels.bincount().tolist() == counts
    valid, train = read_mnist("valid", data), read_mnist("train", data)
    assert (len(train.labels), len(valid.labels)) == (55_000, 5_000)
    assert train.labels[:5].tolist() == [5, 0, 4, 1, 9]


def test_an_epoch_has_every_digit_once_in_an_order_of_its_own():
    images = torch.arange(13, dtype=torch.uint8)[:, None, None].expand(13, 3, 2)
    digits = Digits(images, torch.arange(13))
    orders = []
    for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]:
        batches = list(row_batches(digits, batch=5, seed=seed, epoch=epoch))
        assert [len(batch.labels) for batch in batches] == [5, 5, 3]
        for inputs, labels in batches:
            expected = labels.float()[:, None, None].expand(-1, 3, 2)
            torch.testing.assert_close(inputs * 255, expected)
        orders.append(torch.cat([batch.labels for batch in batches]).tolist())
        assert sorted(orders[-1]) == list(range(13))
    assert orders[0] == orders[1] and orders[0] != orders[2] != orders[3] != orders[0]


def test_pixels_come_in_reading_order():
    images = torch.arange(12, dtype=torch.uint8).view(2, 3, 2)
    assert (as_pixels(images) * 255).round().int()[1, :, 0].tolist() == [6, 7, 8, 9, 10, 11]


def test_parts_that_do_not_fit_together_are_refused(tmp_path):
    (folder := tmp_path / "mnist").mkdir()
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(3, 5, 7))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(2))
    with pytest.raises(TaskError, match=r"images of shape \(3, 5, 7\), labels of shape \(2,\)"):
        read_mnist("test", tmp_path)
