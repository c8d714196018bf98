"""Positions of a text with what was held there: taken, joined, stored."""

import torch

from saccade.interp.lenses.held_out import Sample

ROWS, LENGTH, HEADS, D_HEAD, D_MODEL = 3, 5, 2, 7, 11


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    z = {4: torch.randn(ROWS, LENGTH, HEADS, D_HEAD, generator=generator)}
    return z, torch.randn(ROWS, LENGTH, D_MODEL, generator=generator)


def test_positions_are_counted_row_by_row_and_copied():
    z, final = batch(1)
    taken = Sample.take(z, final, torch.tensor([1, 13]))
    assert torch.equal(taken.z[4], torch.stack([z[4][0, 1], z[4][2, 3]]))
    assert torch.equal(taken.final, torch.stack([final[0, 1], final[2, 3]]))
    final.zero_()
    assert taken.final.abs().sum() > 0 and len(taken) == 2


def test_samples_are_joined_in_order_and_can_be_cut_again():
    parts = [Sample.take(*batch(seed), torch.arange(ROWS * LENGTH)) for seed in (1, 2)]
    joined = Sample.join(parts)
    assert len(joined) == 2 * ROWS * LENGTH
    for found, part in zip((joined[:15], joined[torch.arange(15, 30)]), parts, strict=True):
        assert torch.equal(found.final, part.final) and torch.equal(found.z[4], part.z[4])


def test_what_is_stored_comes_back_among_other_tensors():
    sample = Sample.take(*batch(3), torch.tensor([2, 7, 8])).to(torch.bfloat16)
    found = Sample.from_tensors({**sample.tensors(), "sampled.n": torch.ones(1)})
    assert found.final.dtype is torch.bfloat16 and found.z.keys() == {4}
    assert torch.equal(found.final, sample.final) and torch.equal(found.z[4], sample.z[4])
