"""How a batch is shared by processes."""

from typing import NamedTuple

import torch
from torch import nn

from saccade.distributed import Processes
from saccade.zoo.training.job import moved, share_of, to_device_of


class Pair(NamedTuple):
    x: torch.Tensor
    more: dict
    n: int


def pair(rows):
    return Pair(torch.arange(rows * 3).view(rows, 3), {"y": torch.arange(rows)}, n=7)


def test_every_row_goes_to_one_process():
    shares = [share_of(pair(11), Processes(rank=rank, world=3)) for rank in range(3)]
    assert not any(share.is_idle for share in shares)
    assert all(isinstance(share.batch, Pair) and share.batch.n == 7 for share in shares)
    together = torch.cat([share.batch.more["y"] for share in shares])
    assert together.sort().values.tolist() == list(range(11))
    for share in shares:
        assert torch.equal(share.batch.x[:, 0] // 3, share.batch.more["y"])


def test_one_process_takes_the_batch_as_it_is():
    whole = pair(2)
    assert share_of(whole, Processes()).batch is whole
    assert moved(whole, torch.device("cpu")) is whole


def test_a_process_without_a_row_goes_along_for_nothing():
    shares = [share_of(pair(2), Processes(rank=rank, world=3)) for rank in range(3)]
    assert [share.is_idle for share in shares] == [False, False, True]
    assert len(shares[2].batch.x) == 1


class Counter(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.register_buffer("counts", torch.zeros(2, device=device))


def test_what_a_recipe_reads_goes_to_the_device_of_the_weights_or_else_of_the_buffers():
    """The meta device stands for a GPU: it has a name and no memory."""
    for model in (nn.Linear(2, 3, device="meta"), Counter("meta")):
        batch = to_device_of(model, pair(2))
        assert batch.x.device.type == batch.more["y"].device.type == "meta" and batch.n == 7


def test_with_a_model_that_is_on_no_device_a_batch_stays_where_it_is():
    whole = pair(2)
    assert to_device_of(nn.Dropout(0.1), whole) is whole
