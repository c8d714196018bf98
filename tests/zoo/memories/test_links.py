"""The DNC knows what was written after what."""

import itertools

import torch

from saccade.zoo.memories.addressing import follow, next_links, no_links

BATCH, HEADS, SLOTS = 2, 3, 7


def test_links_agree_with_loops_over_pairs_of_slots():
    generator = torch.Generator().manual_seed(0)
    writes = torch.rand(5, BATCH, SLOTS, generator=generator).softmax(-1) * 0.8
    links = no_links(torch.zeros(BATCH, SLOTS, 1))
    matrix = torch.zeros(BATCH, SLOTS, SLOTS)
    precedence = torch.zeros(BATCH, SLOTS)
    for write in writes:
        links = next_links(links, write)
        for row in range(BATCH):
            for i in range(SLOTS):
                for j in range(SLOTS):
                    kept = (1 - write[row, i] - write[row, j]) * matrix[row, i, j]
                    linked = kept + write[row, i] * precedence[row, j]
                    matrix[row, i, j] = linked if i != j else 0.0
        precedence = (1 - write.sum(1, keepdim=True)) * precedence + write
    torch.testing.assert_close(links.matrix, matrix)
    torch.testing.assert_close(links.precedence, precedence)
    assert (links.matrix >= 0).all()
    assert (links.matrix.sum(1) <= 1 + 1e-6).all() and (links.matrix.sum(2) <= 1 + 1e-6).all()


def test_reading_on_and_back_follows_the_order_of_writing():
    order = [3, 0, 6, 1]
    links = no_links(torch.zeros(1, SLOTS, 1))
    for slot in order:
        links = next_links(links, torch.eye(SLOTS)[[slot]])
    for before, after in itertools.pairwise(order):
        on = follow(links, torch.eye(SLOTS)[before][None, None]).forward
        back = follow(links, torch.eye(SLOTS)[after][None, None]).backward
        assert on.argmax() == after and on.sum() == 1
        assert back.argmax() == before and back.sum() == 1


def test_every_head_follows_by_itself():
    generator = torch.Generator().manual_seed(1)
    links = no_links(torch.zeros(BATCH, SLOTS, 1))
    for write in torch.rand(3, BATCH, SLOTS, generator=generator).softmax(-1):
        links = next_links(links, write)
    weights = torch.rand(BATCH, HEADS, SLOTS, generator=generator).softmax(-1)
    on, back = follow(links, weights)
    for row in range(BATCH):
        for head in range(HEADS):
            torch.testing.assert_close(on[row, head], links.matrix[row] @ weights[row, head])
            torch.testing.assert_close(back[row, head], links.matrix[row].T @ weights[row, head])
