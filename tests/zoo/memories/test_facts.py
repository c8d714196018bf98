"""Facts: bags of words against loops, ages against counting."""

import pytest
import torch

from saccade.zoo.memories.facts import SentenceBags, fact_ages, position_weights, scatter_facts

WORDS, TABLES, D = 11, 3, 7


@pytest.fixture
def sentences():
    return torch.tensor([[3, 5, 2, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [10, 4, 4, 9, 6]])


@pytest.mark.parametrize("is_ordered", [True, False])
def test_a_bag_is_the_weighted_sum_of_its_words(sentences, is_ordered):
    torch.manual_seed(0)
    bags = SentenceBags(n_words=WORDS, n_tables=TABLES, d_embed=D, is_ordered=is_ordered)
    table = bags.table().view(WORDS, TABLES, D)
    expected = torch.zeros(len(sentences), TABLES, D)
    for at, sentence in enumerate(sentences):
        words = [int(word) for word in sentence if word]
        for j, word in enumerate(words):
            weight = position_weights(len(words), D)[j] if is_ordered else torch.ones(D)
            expected[at] += table[word] * weight
    torch.testing.assert_close(bags(sentences), expected)


def test_position_weights_are_twice_the_papers_but_for_half_a_word():
    n, d = 5, 8
    ours = position_weights(n, d)
    for j in range(1, n + 1):
        for k in range(1, d + 1):
            # The paper counts words and dimensions from 1; ours are taken at their middles.
            x, y = (j - 0.5) / n, (k - 0.5) / d
            assert ours[j - 1, k - 1] == pytest.approx(2 * ((1 - x) - y * (1 - 2 * x)))


def test_the_order_of_words_matters_only_to_ordered_bags():
    one, other = torch.tensor([[3, 5, 2]]), torch.tensor([[2, 5, 3]])
    for is_ordered in (True, False):
        bags = SentenceBags(n_words=WORDS, n_tables=1, d_embed=D, is_ordered=is_ordered)
        assert torch.allclose(bags(one), bags(other), atol=1e-6) != is_ordered


def test_padding_changes_nothing_and_nothing_is_zero(sentences):
    bags = SentenceBags(n_words=WORDS, n_tables=TABLES, d_embed=D)
    wider = torch.cat([sentences, torch.zeros(len(sentences), 2, dtype=torch.long)], 1)
    torch.testing.assert_close(bags(sentences), bags(wider))
    assert (bags(sentences)[2] == 0).all()


def test_padding_stays_zero_whatever_is_learnt(sentences):
    bags = SentenceBags(n_words=WORDS, n_tables=TABLES, d_embed=D)
    optimiser = torch.optim.SGD(bags.parameters(), lr=1.0)
    (bags(sentences).square().sum() + bags.table().sum()).backward()
    optimiser.step()
    assert (bags.table()[0] == 0).all()


def test_the_age_of_a_fact_is_how_many_came_after_it():
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])
    assert fact_ages(mask).tolist() == [[4, 3, 2, 1, 0], [2, 1, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_noise_makes_facts_older_but_leaves_their_order():
    torch.manual_seed(0)
    mask = torch.ones(400, 7, dtype=torch.bool)
    ages = fact_ages(mask, noise=0.3)
    assert (ages.diff(dim=1) <= -1).all() and (ages >= fact_ages(mask)).all()
    added = (ages - fact_ages(mask)).float().mean(0)  # 0.3 for each fact after it, and its own
    torch.testing.assert_close(added, 0.3 * torch.arange(7.0, 0.0, -1), atol=0.15, rtol=0.0)


def test_filled_in_values_stand_where_the_mask_is_true():
    mask = torch.tensor([[True, False, True], [False, True, False]])
    values = torch.arange(6.0).view(3, 2)
    filled = scatter_facts(values, mask)
    assert filled[mask].tolist() == values.tolist() and (filled[~mask] == 0).all()
