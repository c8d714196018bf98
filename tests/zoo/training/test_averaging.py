"""The mean of the last weights."""

import torch

from saccade.zoo.training.checkpoint import average_recent, forget_after, keep_recent


def test_the_mean_is_over_the_last_few(tmp_path):
    torch.manual_seed(0)
    all_ = [{"w": torch.randn(3, 5), "n": torch.tensor(k)} for k in range(7)]
    for step, weights in enumerate(all_):
        keep_recent(tmp_path / "recent", weights, step=step * 100, n=3)
    found = average_recent(tmp_path / "recent")
    torch.testing.assert_close(found["w"], torch.stack([w["w"] for w in all_[-3:]]).mean(0))
    assert found["n"] == 6 and found["w"].dtype == torch.float32
    forget_after(tmp_path / "recent", 500)
    assert len(list((tmp_path / "recent").iterdir())) == 2
    torch.testing.assert_close(average_recent(tmp_path / "recent")["n"], torch.tensor(5))
    forget_after(tmp_path / "nothing", 0)
