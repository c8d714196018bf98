import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.metrics.sequence_metrics import character_accuracy, exact_match, token_accuracy


def test_an_answer_is_right_or_wrong():
    assert exact_match(["12184", "25011", "7251 "], ["12184", "25001", "7251"]) == (1 / 3, 1, 3)


def test_characters_are_compared_place_by_place():
    # 4 of 5 ("wrong digit"), 2 of 4 (too short), 3 of 3 (too long).
    found = character_accuracy(["12184", "25", "9999"], ["12194", "2501", "999"])
    assert (found.n_right, found.n) == (9, 12)
    assert found.rate == 0.75


def test_padding_counts_neither_way():
    predicted = torch.tensor([[5, 6, 7], [8, 9, 0]])
    targets = torch.tensor([[5, 6, 8], [8, 0, 0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert token_accuracy(predicted, targets, mask) == (0.75, 3, 4)
    assert token_accuracy(predicted, targets, torch.zeros_like(mask)) == (0, 0, 0)


@pytest.mark.parametrize("metric", [exact_match, character_accuracy])
def test_lists_of_unequal_length_are_refused(metric):
    with pytest.raises(UsageError, match="1 answers and 2 references"):
        metric(["a"], ["a", "b"])
