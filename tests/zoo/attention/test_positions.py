"""Positions against the formula and its laws."""

import math

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.attention.multi_head import LearnedPositions, sinusoidal_positions


@pytest.mark.parametrize("d_model", [6, 7])
def test_sinusoidal_positions_are_the_formula_by_loops(d_model):
    table = sinusoidal_positions(11, d_model)
    assert table.shape == (11, d_model)
    for position in range(11):
        for column in range(d_model):
            angle = position / 10000 ** (2 * (column // 2) / d_model)
            expected = math.cos(angle) if column % 2 else math.sin(angle)
            assert table[position, column].item() == pytest.approx(expected, abs=1e-5)


def test_a_shift_is_the_same_rotation_everywhere():
    # Section 3.5's reason for them: position + k is a linear function of position.
    table = sinusoidal_positions(29, 10).double()
    shift = torch.linalg.lstsq(table[:-3], table[3:]).solution
    torch.testing.assert_close(table[:-3] @ shift, table[3:], atol=1e-4, rtol=0)


def test_the_product_of_two_positions_depends_on_their_distance_alone():
    table = sinusoidal_positions(23, 14)
    products = table @ table.T
    for distance in (1, 5, 11):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


def test_learned_positions_are_rows_of_one_table_from_any_start():
    positions = LearnedPositions(max_length=13, d_model=5)
    assert torch.equal(positions(7), positions.weight[:7])
    assert torch.equal(positions(1, start=7), positions.weight[7:8])
    assert positions(13).requires_grad


def test_learned_positions_end_somewhere():
    positions = LearnedPositions(max_length=13, d_model=5)
    with pytest.raises(UsageError, match="learnt up to 13, got 14"):
        positions(2, start=12)
