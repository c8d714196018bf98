"""Greedy search, judged by taking the likeliest symbol of one sentence at a time."""

import pytest
import torch
from steppers import Markov, Reader, follow, sources

from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.tasks.vocabulary import BOS, EOS

LENGTH = 13


@torch.no_grad()
def likeliest(model, source):
    memory, state = model.start(source)
    token, ids = BOS, []
    for _ in range(LENGTH):
        stepped = model.step(torch.tensor([token]), memory, state)
        token, state = int(stepped.log_probs[0].argmax()), stepped.state
        if token == EOS:
            break
        ids.append(token)
    return ids


@pytest.fixture(scope="module")
def model():
    return Reader(11, seed=3)


def test_each_sentence_gets_its_likeliest_symbols(model):
    source = sources(17)
    found = greedy(model, source, max_length=LENGTH)
    assert [one.ids for one in found] == [likeliest(model, source[s : s + 1]) for s in range(17)]
    assert len({len(one.ids) for one in found}) > 2


def test_log_prob_and_weights_are_those_of_the_sentence(model):
    source = sources(17)
    for s, one in enumerate(greedy(model, source, max_length=LENGTH)):
        if len(one.ids) < LENGTH:
            said = follow(model, source[s : s + 1], one.ids)
            assert one.log_prob == one.score == pytest.approx(said.log_prob, abs=1e-5)
            torch.testing.assert_close(one.weights, said.weights)


def test_what_does_not_end_is_cut():
    table = torch.tensor([[0.0, 0.0, 0.1, 0.2, 0.7]] * 5)
    found = greedy(Markov(table), 2, max_length=3)
    assert [one.ids for one in found] == [[4, 4, 4], [4, 4, 4]]
    assert found[1].log_prob == pytest.approx(3 * torch.tensor(0.7).log().item())
    assert found[1].weights is None


def test_sentences_that_have_ended_leave_the_batch(model):
    model.rows.clear()
    found = greedy(model, sources(17), max_length=LENGTH)
    rows = [n for n, _ in model.rows]
    assert sum(rows) == sum(min(len(one.ids) + 1, LENGTH) for one in found)
