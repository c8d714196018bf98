"""The three ways to end, judged by counting."""

import pytest
import torch
from steppers import Markov

from saccade.zoo.decoding.greedy import greedy, sample
from saccade.zoo.decoding.stepper import (
    LengthPredictor,
    Started,
    Stepped,
    coin_loss,
    ending,
    stop_when_none_left,
)

BATCH, POSITIONS, D_INPUT = 3, 7, 5


def test_an_end_symbol_ends():
    found = ending(torch.tensor([2, 4, 2, 0]), None)
    assert found.is_last.tolist() == [True, False, True, False]
    assert (found.log_prob == 0).all()


def test_a_coin_ends_on_its_likelier_side_and_costs_its_probability():
    stop = torch.tensor([1.5, -0.5])
    found = ending(torch.tensor([4, 2]), stop)
    assert found.is_last.tolist() == [True, False]
    expected = torch.stack([stop[0].sigmoid().log(), (1 - stop[1].sigmoid()).log()])
    torch.testing.assert_close(found.log_prob, expected)


def test_a_tossed_coin_falls_as_often_as_it_should():
    n, generator = 30_011, torch.Generator().manual_seed(0)
    found = ending(
        torch.zeros(n).long(), torch.full((n,), -1.0), is_sampled=True, generator=generator
    )
    assert found.is_last.float().mean().item() == pytest.approx(0.2689, abs=0.01)


def test_a_model_with_a_coin_says_what_the_coin_allows():
    """Two symbols, one of them 2: for a model with a coin it is a symbol like any other."""
    table = torch.tensor([[0.0, 0.0, 0.5, 0.5]] * 4)
    stop = torch.tensor([0.0, -0.5, 2.0, 0.7])
    n = 20_011
    drawn, _ = sample(
        Markov(table, stop), 2, max_length=40, n=n, generator=torch.Generator().manual_seed(1)
    )
    # The coin after the first symbol is that of BOS; the length follows from there.
    lengths = torch.tensor([len(one.ids) for one in drawn])
    p_first = torch.tensor(-0.5).sigmoid()
    assert (lengths == 1).float().mean().item() == pytest.approx(p_first.item(), abs=0.015)
    assert any(2 in one.ids for one in drawn)
    one = next(one for one in drawn if len(one.ids) == 1)
    assert one.log_prob == pytest.approx((0.5 * p_first).log().item(), abs=1e-5)


def test_coin_loss_agrees_with_a_loop():
    torch.manual_seed(0)
    stop = torch.randn(BATCH, POSITIONS)
    lengths = [2, 7, 5]
    mask = torch.arange(POSITIONS) < torch.tensor(lengths)[:, None]
    total = 0.0
    for row, length in enumerate(lengths):
        for pos in range(length):
            p = stop[row, pos].sigmoid()
            total -= (p if pos == length - 1 else 1 - p).log()
    torch.testing.assert_close(coin_loss(stop, mask), total / sum(lengths))


def test_coin_loss_is_not_moved_by_padding():
    stop = torch.full((BATCH, POSITIONS), 0.3).requires_grad_()
    mask = torch.arange(POSITIONS) < torch.tensor([1, 2, 3])[:, None]
    coin_loss(stop, mask).backward()
    assert stop.grad is not None and (stop.grad[~mask] == 0).all() and (stop.grad[mask] != 0).all()


class CountsDown(Markov):
    """Knows how many symbols it will say: as many as its source says."""

    def start(self, source):
        return Started(None, source)

    def step(self, tokens, _memory, state):
        stop = stop_when_none_left(state - 1)
        return Stepped(self.log_probs[tokens], state - 1, stop=stop)


def test_a_model_that_counts_down_says_as_much_as_it_promised():
    model = CountsDown(torch.full((5, 5), 0.2))
    lengths = torch.tensor([3, 1, 6, 2])
    found = greedy(model, lengths, max_length=11)
    assert [len(one.ids) for one in found] == lengths.tolist()
    for one in found:
        assert one.log_prob == pytest.approx(len(one.ids) * torch.tensor(0.2).log().item())
    drawn = sample(model, lengths, max_length=11, n=3)
    assert [[len(one.ids) for one in each] for each in drawn] == [[n] * 3 for n in lengths.tolist()]


def test_a_length_predictor_learns_lengths_it_can_see():
    torch.manual_seed(0)
    predictor = LengthPredictor(D_INPUT, max_length=4)
    summary, lengths = torch.eye(D_INPUT), torch.tensor([4, 1, 3, 2, 99])
    optimiser = torch.optim.Adam(predictor.parameters(), lr=0.3)
    for _ in range(40):
        optimiser.zero_grad()
        loss = predictor.loss(summary, lengths)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.05
    assert predictor(summary).tolist() == [4, 1, 3, 2, 4]
