"""The best continuations, judged by torch's own topk over all of them."""

import pytest
import torch

from saccade.zoo.decoding.beam import BLOCK, largest_sums

SENTENCES = 3


@pytest.mark.parametrize("d_vocab", [5, BLOCK, BLOCK + 3, 5 * BLOCK, 1031])
@pytest.mark.parametrize(("n_beams", "k"), [(1, 5), (5, 2), (5, 11), (7, 23)])
def test_they_are_those_of_a_plain_topk(d_vocab, n_beams, k):
    torch.manual_seed(0)
    so_far = 3 * torch.randn(SENTENCES, n_beams)
    log_probs = torch.randn(SENTENCES, n_beams, d_vocab)
    found = largest_sums(so_far, log_probs, k)
    sums = so_far[:, :, None] + log_probs
    torch.testing.assert_close(found.value, sums.flatten(1).topk(k).values)
    there = sums[torch.arange(SENTENCES)[:, None], found.beam, found.token]
    torch.testing.assert_close(found.value, there)
    places = found.beam * d_vocab + found.token
    assert all(len(row.unique()) == k for row in places)


def test_the_impossible_comes_last_and_is_never_nan():
    log_probs = torch.full((2, 3, 3 * BLOCK), -torch.inf)
    log_probs[0, 1, 2], log_probs[1, 2, 300] = -1.0, -2.0
    found = largest_sums(torch.tensor([[0.0, -1.0, -torch.inf], [0.0, -1.0, -2.0]]), log_probs, 7)
    assert found.value[:, 0].tolist() == [-2.0, -4.0]
    assert (found.beam[:, 0].tolist(), found.token[:, 0].tolist()) == ([1, 2], [2, 300])
    assert (found.value[:, 1:] == -torch.inf).all()
