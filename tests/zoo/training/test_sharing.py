"""How a batch is shared by processes."""

from typing import NamedTuple

import torch

from saccade.distributed import Processes
from saccade.zoo.training.job import moved, share_of


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
