"""Ensembles, judged by the mean of their members' probabilities."""

import pytest
import torch
from steppers import Markov, Reader, follow, sources

from saccade.errors import UsageError
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import Ensemble, log_prob_of
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Stepper

D_VOCAB = 11


def test_copies_of_a_model_are_the_model():
    source, model = sources(5), Reader(D_VOCAB, seed=3)
    alone = beam(model, source, size=3, max_length=13, length_penalty=0.6, n_best=3)
    together = beam(
        Ensemble([model] * 3), source, size=3, max_length=13, length_penalty=0.6, n_best=3
    )
    for one, other in zip(alone.hypotheses, together.hypotheses, strict=True):
        assert [h.ids for h in one] == [h.ids for h in other]
        assert [h.score for h in one] == pytest.approx([h.score for h in other], abs=1e-4)
        for h, g in zip(one, other, strict=True):
            torch.testing.assert_close(h.weights, g.weights)


def test_it_predicts_the_mean_of_probabilities():
    source = sources(3)
    members = [Reader(D_VOCAB, seed=s) for s in (0, 1)]
    ensemble = Ensemble(members)
    memory, state = ensemble.start(source)
    found = ensemble.step(torch.tensor([1, 4, 5]), memory, state)
    each = [m.step(torch.tensor([1, 4, 5]), *m.start(source)).log_probs.exp() for m in members]
    torch.testing.assert_close(found.log_probs.exp(), (each[0] + each[1]) / 2)


def test_decoding_it_keeps_each_members_own_state():
    source = sources(3)
    ensemble = Ensemble([Reader(D_VOCAB, seed=0), Reader(D_VOCAB, seed=1)])
    for s, found in enumerate(beam(ensemble, source, size=4, max_length=9).best):
        said = follow(ensemble, source[s : s + 1], found.ids)
        assert found.log_prob == pytest.approx(said.log_prob, abs=1e-4)


def test_a_chain_and_a_reader_may_join_but_tell_no_weights():
    class Both(Markov):
        def start(self, source):
            return super().start(len(source))

    ensemble = Ensemble([Both(torch.full((D_VOCAB, D_VOCAB), 1 / D_VOCAB)), Reader(D_VOCAB)])
    assert isinstance(ensemble, Stepper)
    found = greedy(ensemble, sources(3), max_length=7)
    assert all(one.weights is None for one in found)
    expected = log_prob_of(ensemble, sources(3), [[one.ids] for one in found])[:, 0]
    ended = torch.tensor([len(one.ids) < 7 for one in found])
    got = torch.tensor([one.log_prob for one in found])
    torch.testing.assert_close(got[ended], expected[ended])


def test_coins_are_averaged_too():
    stops = [torch.full((5,), 1.0), torch.full((5,), -3.0)]
    table = torch.full((5, 5), 0.2)
    ensemble = Ensemble([Markov(table, stop) for stop in stops])
    stepped = ensemble.step(torch.tensor([1, 1]), *ensemble.start(2))
    expected = (stops[0].sigmoid() + stops[1].sigmoid())[:2] / 2
    torch.testing.assert_close(stepped.stop.sigmoid(), expected)


def test_models_with_different_vocabularies_are_refused():
    ensemble = Ensemble([Reader(11), Reader(13)])
    with pytest.raises(UsageError, match=r"must share a vocabulary, got sizes \[11, 13\]"):
        greedy(ensemble, sources(2), max_length=3)


def test_an_ensemble_of_none_is_refused():
    with pytest.raises(UsageError, match="at least one model, got none"):
        Ensemble([])
