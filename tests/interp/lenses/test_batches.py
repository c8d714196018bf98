"""Which positions of a text are read, and which of them are sampled: decided by each row alone."""

from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from saccade.interp.lenses.batches import Batch, kept_positions, priorities, row_hashes

ROWS = 61


def rows(length):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, 101, (ROWS, length), generator=generator)


def model(n_skipped):
    """What of a model the choice of positions needs."""
    return SimpleNamespace(encoding=SimpleNamespace(n_skipped=n_skipped))


@pytest.mark.parametrize("n_skipped", [0, 1, 2])
@pytest.mark.parametrize("length", [5, 6, 11, 12])
def test_a_row_is_read_at_every_other_position_and_two_rows_differ_in_which(length, n_skipped):
    kept = kept_positions(model(n_skipped), rows(length))
    own = range(n_skipped, length)
    n = len(own) // 2
    even, odd = list(own[0::2][:n]), list(own[1::2][:n])
    assert {tuple(row) for row in kept.tolist()} == {tuple(even), tuple(odd)}
    is_odd = (kept == torch.tensor(odd)).all(1)
    assert 0.25 < is_odd.float().mean() < 0.75


def test_a_row_with_one_token_of_text_is_read_there():
    assert kept_positions(model(2), rows(3)).tolist() == [[2]] * ROWS


def splitmix64(seed):
    """Steele, Lea and Flood, 2014: a counter, mixed by xor, shift and product."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        yield z ^ z >> 31


def test_priorities_are_the_numbers_of_splitmix64_with_the_row_as_seed():
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert list(islice(splitmix64(1234567), 3)) == known  # as other implementations give them
    ids = rows(7)
    positions = torch.tensor([[0, 2, 5]]).expand(ROWS, -1)
    none = torch.zeros(ROWS, 3, 2)
    batch = Batch(ids, positions, {}, none, torch.zeros(ROWS, dtype=torch.bool))
    drawn = [list(islice(splitmix64(seed), 7)) for seed in row_hashes(ids).tolist()]
    assert priorities(batch).tolist() == [[row[at] // 2 for at in (0, 2, 5)] for row in drawn]
