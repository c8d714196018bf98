"""N-best lists put into a new order."""

import pytest
import torch
from steppers import Reader, follow, sources

from saccade.errors import UsageError
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import by_model, log_prob_of, rescore
from saccade.zoo.decoding.stepper import Hypothesis

N_BEST = [
    [Hypothesis([4], -1.0, -1.0), Hypothesis([5, 6], -2.0, -2.0)],
    [Hypothesis([7], -3.0, -3.0)],
]


def test_an_even_average_decides():
    found = rescore(N_BEST, lambda _: [[-9.0, -1.0], [-5.0]])
    assert [[one.ids for one in each] for each in found] == [[[5, 6], [4]], [[7]]]
    assert [[one.score for one in each] for each in found] == [[-1.5, -5.0], [-4.0]]
    assert [one.log_prob for one in found[0]] == [-2.0, -1.0]


def test_the_weight_moves_it_from_the_first_opinion_to_the_second():
    opinion = [[-9.0, -1.0], [-5.0]]
    assert rescore(N_BEST, lambda _: opinion, weight=0.0) == N_BEST
    (first, second), _ = rescore(N_BEST, lambda _: opinion, weight=1.0)
    assert (first.score, second.score) == (-1.0, -9.0)


def test_the_scorer_sees_the_symbols_of_every_hypothesis():
    seen = []
    rescore(N_BEST, lambda ids: seen.append(ids) or [[0.0, 0.0], [0.0]])
    assert seen == [[[[4], [5, 6]], [[7]]]]


def test_a_model_gives_the_log_probability_of_each_sequence():
    source, model = sources(2), Reader(7)
    said = [[[4, 5, 0, 3], [], [6]], [[3]]]
    found = log_prob_of(model, source, said)
    for s, group in enumerate(said):
        for i, ids in enumerate(group):
            expected = follow(model, source[s : s + 1], ids).log_prob
            assert found[s, i].item() == pytest.approx(expected, abs=1e-5)


def test_a_model_that_made_the_list_leaves_it_as_it_is():
    source, model = sources(5), Reader(7)
    made = beam(model, source, size=4, max_length=9, n_best=4).hypotheses
    again = rescore(made, by_model(model, source))
    for one, other in zip(made, again, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)


def test_another_model_changes_it_and_the_best_is_the_best_of_both():
    source, model, other = sources(5), Reader(7, seed=0), Reader(7, seed=1)
    made = beam(model, source, size=6, max_length=9, n_best=6).hypotheses
    again = rescore(made, by_model(other, source))
    assert [h[0].ids for h in made] != [h[0].ids for h in again]
    for s, group in enumerate(again):
        both = [
            (h.log_prob + follow(other, source[s : s + 1], h.ids).log_prob) / 2 for h in made[s]
        ]
        assert group[0].score == pytest.approx(max(both), abs=1e-4)


def test_a_scorer_that_leaves_some_out_is_refused():
    with pytest.raises(UsageError, match=r"expected \[2, 1\] scores, got \[1, 1\]"):
        rescore(N_BEST, lambda _: [[0.0], [0.0]])


def test_another_source_is_refused():
    with pytest.raises(UsageError, match="for 2 sentences, but the source has 3"):
        log_prob_of(Reader(7), sources(3), [[[4]], [[5]]])


def test_no_gradient_is_kept():
    assert not log_prob_of(Reader(7), sources(2), [[[4]], [[5]]]).requires_grad
    assert torch.is_grad_enabled()
