"""Weight at the right place, against loops over cells and frames."""

import torch

from saccade.zoo.metrics.sequence_metrics import weight_in_spans, weight_in_windows

LOOKS, ROWS, COLUMNS = 5, 3, 7


def test_the_weight_in_a_window_is_that_of_cells_whose_centre_is_inside():
    torch.manual_seed(0)
    weights = torch.rand(LOOKS, ROWS * COLUMNS).softmax(1).view(LOOKS, ROWS, COLUMNS)
    windows = torch.cat([torch.rand(LOOKS, 2) * 2 - 1, torch.rand(LOOKS, 2)], dim=1)
    expected = []
    for look, (x, y, half_width, half_height) in zip(weights, windows.tolist(), strict=True):
        total = 0.0
        for row in range(ROWS):
            for column in range(COLUMNS):
                at_x, at_y = (2 * column + 1) / COLUMNS - 1, (2 * row + 1) / ROWS - 1
                if abs(at_x - x) <= half_width and abs(at_y - y) <= half_height:
                    total += look[row, column].item()
        expected.append(total)
    found = weight_in_windows(weights, windows)
    torch.testing.assert_close(found, torch.tensor(expected))
    assert 0 < found.min() < found.max() < 1


def test_a_window_as_large_as_the_image_has_all_of_the_weight():
    weights = torch.full((LOOKS, ROWS, COLUMNS), 1 / (ROWS * COLUMNS))
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(LOOKS, 4)
    torch.testing.assert_close(weight_in_windows(weights, whole), torch.ones(LOOKS))


def test_the_weight_in_a_span_is_that_of_its_places():
    weights = torch.rand(LOOKS, COLUMNS)
    spans = torch.tensor([[0, 7], [2, 3], [4, 4], [0, 1], [5, 9]])
    expected = [sum(row[a:b]) for row, (a, b) in zip(weights.tolist(), spans.tolist(), strict=True)]
    torch.testing.assert_close(weight_in_spans(weights, spans), torch.tensor(expected))
