import math

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.attention.local import AlignedWindow, LocalAttention, PredictedWindow
from saccade.zoo.attention.scores import BilinearScore, DotScore


def by_loops(scores, values, *, centre, reach, n, is_gaussian):
    """Luong's equations for one query."""
    inside = [s for s in range(n) if abs(s - centre) <= reach]
    total = sum(math.exp(scores[s]) for s in inside)
    context, weights = torch.zeros(values.shape[1]), torch.zeros(len(scores))
    for s in inside:
        weights[s] = math.exp(scores[s]) / total
        if is_gaussian:
            weights[s] *= math.exp(-((s - centre) ** 2) / (2 * (reach / 2) ** 2))
        context += weights[s] * values[s]
    return context, weights


@torch.no_grad()
@pytest.mark.parametrize("reach", [1, 2, 10])
@pytest.mark.parametrize("is_predicted", [False, True])
def test_it_is_the_paper_query_by_query(inputs, reach, is_predicted):
    torch.manual_seed(0)
    window = PredictedWindow(d_query=7, reach=reach) if is_predicted else AlignedWindow(reach=reach)
    attention = LocalAttention(BilinearScore(d_query=7, d_key=11), window)
    memory = attention.remember(inputs.keys, mask=inputs.mask)
    position = torch.tensor([[0, 4], [1, 9], [3, 13]])  # 9, 3 and 13 are past the end
    found = attention(inputs.query, memory, position=position)
    scores = attention.whole.score(inputs.query, memory.keys)
    for row, n in enumerate([5, 3, 1]):
        for q in range(2):
            centre = min(position[row, q].item(), n - 1)
            if is_predicted:
                odds = window.place(torch.tanh(window.hidden(inputs.query[row, q]))).item()
                centre = (n - 1) / (1 + math.exp(-odds))
            context, weights = by_loops(
                scores[row, q].tolist(), inputs.keys[row], centre=centre, reach=reach, n=n,
                is_gaussian=is_predicted,
            )  # fmt: skip
            torch.testing.assert_close(found.weights[row, q], weights)
            torch.testing.assert_close(found.context[row, q], context)


def test_without_a_window_it_is_plain_attention(inputs):
    attention = LocalAttention(BilinearScore(d_query=7, d_key=11))
    memory = attention.remember(inputs.keys, mask=inputs.mask)
    position = torch.zeros(3, 2, dtype=torch.long)
    found = attention(inputs.query, memory, position=position)
    whole = attention.whole(inputs.query, memory)
    assert torch.equal(found.weights, whole.weights)
    assert torch.equal(found.context, whole.context)


def test_the_place_is_learnt_through_the_gaussian():
    torch.manual_seed(0)
    attention = LocalAttention(DotScore(d_query=3, d_key=3), PredictedWindow(d_query=3, reach=3))
    keys = torch.zeros(2, 11, 3)  # all alike, so that content tells nothing
    query, position = torch.ones(2, 1, 3), torch.zeros(2, 1, dtype=torch.long)
    optimiser = torch.optim.Adam(attention.window.parameters(), lr=0.05)
    values = torch.zeros(2, 11, 1)
    values[:, 7] = 1.0
    for _ in range(150):
        memory = attention.remember(keys)._replace(values=values)
        loss = -attention(query, memory, position=position).context.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    centre = attention.window.centre(query, memory.mask)
    torch.testing.assert_close(centre, torch.full((2, 1), 7.0), atol=1.0, rtol=0.0)


def test_a_window_without_reach_is_refused():
    with pytest.raises(UsageError, match="reach 1 position or more, got 0"):
        AlignedWindow(reach=0)
