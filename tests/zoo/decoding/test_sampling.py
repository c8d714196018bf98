"""Sampling, judged by the probabilities of all that can be said."""

from collections import Counter

import pytest
import torch
from steppers import Markov, Reader, everything, follow, sources

from saccade.errors import UsageError
from saccade.zoo.decoding.greedy import draw, greedy, sample
from saccade.zoo.tasks.vocabulary import EOS


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def table_of_four():
    """Symbols 3 and 4, each with an even chance to end."""
    table = torch.zeros(5, 5)
    table[EOS, EOS] = 1.0  # what has ended is asked on beside what has not
    table[1] = torch.tensor([0.0, 0.0, 0.2, 0.5, 0.3])
    table[3] = torch.tensor([0.0, 0.0, 0.5, 0.1, 0.4])
    table[4] = torch.tensor([0.0, 0.0, 0.7, 0.2, 0.1])
    return table


def test_what_is_drawn_is_as_frequent_as_it_is_probable():
    model, n = Markov(table_of_four()), 20_011
    first, _ = sample(model, 2, max_length=4, n=n, generator=seeded())
    found = Counter(tuple(one.ids) for one in first)
    for said in everything(model, 1, d_vocab=5, max_length=3):
        p = torch.tensor(said.log_prob).exp().item()
        assert found[said.ids] / n == pytest.approx(p, abs=4 * (p / n) ** 0.5 + 1e-9)


def test_log_prob_is_the_models_own_at_any_temperature():
    source, model = sources(3), Reader(7, seed=3)
    for s, drawn in enumerate(sample(model, source, max_length=19, n=5, temperature=1.7)):
        assert len(drawn) == 5
        for one in (one for one in drawn if len(one.ids) < 19):
            said = follow(model, source[s : s + 1], one.ids)
            assert one.log_prob == pytest.approx(said.log_prob, abs=1e-4)
            torch.testing.assert_close(one.weights, said.weights)


@pytest.mark.parametrize("careful", [{"temperature": 1e-4}, {"top_k": 1}])
def test_the_most_careful_draw_is_greedy(careful):
    source, model = sources(5), Reader(7, seed=3)
    expected = [one.ids for one in greedy(model, source, max_length=11)]
    for drawn in zip(*sample(model, source, max_length=11, n=3, **careful), strict=True):
        assert [one.ids for one in drawn] == expected


def test_the_same_seed_draws_the_same():
    source, model = sources(5), Reader(7, seed=3)
    a, b, c = (
        [one.ids for (one,) in sample(model, source, max_length=9, generator=seeded(s))]
        for s in (1, 1, 2)
    )
    assert a == b != c


def test_temperature_and_top_k_change_the_chances_as_defined():
    p = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    rows = p.log().expand(40_009, 4)
    drawn = draw(rows, temperature=0.5, top_k=3, generator=seeded())
    expected = torch.cat([p[0, :3] ** 2 / (p[0, :3] ** 2).sum(), torch.zeros(1)])
    found = torch.bincount(drawn, minlength=4) / len(rows)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)


def test_closed_sequences_wait_for_the_open_ones_of_their_sentence():
    source, model = sources(3), Reader(7, seed=3)
    drawn = sample(model, source, max_length=15, n=7, generator=seeded())
    assert all(rows == 7 * sentences for rows, sentences in model.rows)
    assert all(EOS not in one.ids for each in drawn for one in each)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
    ],
)
def test_a_draw_that_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        sample(Reader(), sources(2), max_length=3, **wrong)


@pytest.mark.parametrize("temperature", [1e-320, 1e-30])
def test_the_lowest_temperatures_take_the_likeliest(temperature):
    log_probs = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]]).log()
    assert draw(log_probs, temperature=temperature).tolist() == [1, 0]


def test_the_highest_temperature_makes_what_can_be_said_even():
    log_probs = torch.tensor([[0.0, 0.9, 0.1]]).log().expand(200, 3)
    drawn = draw(log_probs, temperature=1e308, generator=seeded())
    assert set(drawn.tolist()) == {1, 2} and 60 < int((drawn == 1).sum()) < 140
