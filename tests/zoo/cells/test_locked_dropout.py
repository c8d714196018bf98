"""Dropout that is the same at every step."""

import torch

from saccade.zoo.cells.lstm import LockedDropout


def test_what_is_dropped_is_dropped_at_every_step_and_differs_from_row_to_row():
    dropped = LockedDropout(0.3)(torch.ones(2, 5, 1009))
    assert (dropped == dropped[:, :1]).all()
    assert not torch.equal(dropped[0], dropped[1])


def test_the_mean_is_kept():
    dropped = LockedDropout(0.3)(torch.ones(211, 2, 1009))
    assert abs(dropped.mean().item() - 1) < 0.01
    assert abs((dropped == 0).float().mean().item() - 0.3) < 0.01


def test_nothing_is_dropped_in_eval_mode_nor_at_rate_zero():
    x = torch.randn(2, 3, 5)
    assert LockedDropout(0.9).eval()(x) is x
    assert LockedDropout(0.0)(x) is x
