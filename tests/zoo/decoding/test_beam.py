"""Beam search, judged by all that a tiny model can say and by a search written with loops."""

import pytest
import torch
from steppers import Markov, Reader, beam_by_loops, everything, follow, ranked, sources

from saccade.errors import UsageError
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Stepped
from saccade.zoo.tasks.vocabulary import EOS

SENTENCES, D_VOCAB, LENGTH = 3, 5, 4
# At the third step 16 open hypotheses have 80 continuations: this beam keeps all of them.
EVERYTHING = 80
PENALTIES = [0.0, 0.7, 1.5, -0.5]


@pytest.fixture
def source():
    return sources(SENTENCES)


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_wide_beam_finds_the_best_of_all_that_can_be_said(source, length_penalty, seed):
    model = Reader(D_VOCAB, seed=seed)
    found = beam(
        model,
        source,
        size=EVERYTHING,
        max_length=LENGTH,
        length_penalty=length_penalty,
        n_best=7,
    )
    for s, hypotheses in enumerate(found.hypotheses):
        said = everything(model, source[s : s + 1], d_vocab=D_VOCAB, max_length=LENGTH)
        best = ranked(said, length_penalty)[:7]
        assert [one.ids for one in hypotheses] == [list(one.ids) for _, one in best]
        assert [one.score for one in hypotheses] == pytest.approx([score for score, _ in best])
        assert [h.log_prob for h in hypotheses] == pytest.approx([o.log_prob for _, o in best])


@pytest.mark.parametrize("length_penalty", PENALTIES)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_narrow_beam_finds_what_a_search_that_never_stops_early_finds(size, length_penalty):
    source = sources(11, seed=1)
    model = Reader(7, seed=2, sharpness=1.5)
    settings = {"size": size, "max_length": 6, "length_penalty": length_penalty}
    found = beam(model, source, **settings, n_best=2)
    for s, hypotheses in enumerate(found.hypotheses):
        best = beam_by_loops(model, source[s : s + 1], **settings)[:2]
        assert [one.ids for one in hypotheses] == [list(one.ids) for _, one in best]
        assert [one.score for one in hypotheses] == pytest.approx([score for score, _ in best])


def first_end_is_not_best():
    """The end symbol is the likeliest first symbol, but 4 5 is likelier by symbol."""
    table = torch.full((6, 6), 1e-6)
    table[1, EOS], table[1, 4] = 0.5, 0.45
    table[4, 5], table[5, EOS] = 0.99, 0.99
    return Markov(table)


def test_with_a_length_penalty_it_does_not_stop_at_the_first_end_symbol():
    settings = {"size": 2, "max_length": 5}
    short = beam(first_end_is_not_best(), 2, **settings)
    assert [one.ids for one in short.best] == [[], []]
    long = beam(first_end_is_not_best(), 2, **settings, length_penalty=1.0)
    assert [one.ids for one in long.best] == [[4, 5], [4, 5]]
    assert long.best[0].score > short.best[0].log_prob


def test_a_beam_of_one_without_penalty_is_greedy():
    source = sources(23)
    model = Reader(13, seed=3)
    walked = greedy(model, source, max_length=17)
    found = beam(model, source, size=1, max_length=17).best
    ended = [(w, f) for w, f in zip(walked, found, strict=True) if len(w.ids) < 17]
    assert len(ended) > 5
    for one, other in ended:
        assert one.ids == other.ids
        assert one.log_prob == pytest.approx(other.log_prob)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_sentences_do_not_change_each_other(length_penalty):
    source = sources(7, seed=4)
    model = Reader(11, seed=4)
    settings = {"size": 3, "max_length": 12, "length_penalty": length_penalty, "n_best": 3}
    together = beam(model, source, **settings).hypotheses
    for s, hypotheses in enumerate(together):
        (alone,) = beam(model, source[s : s + 1], **settings).hypotheses
        assert [one.ids for one in alone] == [one.ids for one in hypotheses]
        assert [one.score for one in alone] == pytest.approx([one.score for one in hypotheses])
        for one, other in zip(alone, hypotheses, strict=True):
            torch.testing.assert_close(one.weights, other.weights)


def test_each_sentence_may_have_a_limit_of_its_own():
    source = sources(5, seed=5)
    model = Reader(11, seed=5, sharpness=0.5)
    limits = torch.tensor([1, 4, 2, 9, 3])
    settings = {"size": 3, "length_penalty": 0.8, "n_best": 2}
    found = beam(model, source, max_length=limits, **settings).hypotheses
    for s, limit in enumerate(limits.tolist()):
        (alone,) = beam(model, source[s : s + 1], max_length=limit, **settings).hypotheses
        assert [one.ids for one in found[s]] == [one.ids for one in alone]
        assert all(len(one.ids) < limit for one in found[s])


def test_sentences_that_are_done_leave_the_batch_and_memory_is_not_copied_for_hypotheses():
    model = Reader(11, seed=4)
    beam(model, sources(7, seed=4), size=3, max_length=40)
    in_memory = [sentences for _, sentences in model.rows]
    assert in_memory[0] == 7
    assert all(rows == min(3, rows) or rows == 3 * n for rows, n in model.rows[1:])
    assert in_memory == sorted(in_memory, reverse=True)
    assert in_memory[-1] < 7


def test_weights_are_those_of_the_hypothesis_itself(source):
    model = Reader(D_VOCAB)
    found = beam(model, source, size=3, max_length=9, n_best=2)
    for s, hypotheses in enumerate(found.hypotheses):
        for one in hypotheses:
            said = follow(model, source[s : s + 1], one.ids)
            assert one.log_prob == pytest.approx(said.log_prob, abs=1e-5)
            torch.testing.assert_close(one.weights, said.weights)


def test_what_has_probability_zero_is_not_offered():
    table = torch.zeros(5, 5)
    table[1, 4], table[1, 3], table[4, EOS], table[3, EOS] = 0.25, 0.75, 1.0, 1.0
    found = beam(Markov(table), 2, size=4, max_length=6, n_best=4)
    assert [[one.ids for one in each] for each in found.hypotheses] == [[[3], [4]]] * 2


def test_at_the_limit_every_hypothesis_gets_its_end():
    table = torch.full((5, 5), 0.249)
    table[:, EOS] = 1 - 4 * 0.249
    (best, *_) = beam(Markov(table), 2, size=2, max_length=3, length_penalty=9.0).best
    assert len(best.ids) == 2
    assert best.log_prob == pytest.approx(2 * torch.tensor(0.249).log() + table[0, EOS].log())


@pytest.mark.parametrize("wrong", [{"size": 0}, {"n_best": 0}, {"max_length": 0}])
def test_less_than_one_of_anything_is_refused(source, wrong):
    settings = {"size": 2, "max_length": 3} | wrong
    ((name, _),) = wrong.items()
    with pytest.raises(UsageError, match=f"{name} must be at least 1, got 0"):
        beam(Reader(), source, **settings)


def test_a_model_that_stops_by_coin_is_refused():
    class Coin(Markov):
        def step(self, tokens, _memory, state):
            return Stepped(self.log_probs[tokens], state, stop=torch.zeros(len(tokens)))

    with pytest.raises(UsageError, match="this one stops by coin"):
        beam(Coin(torch.full((5, 5), 0.2)), 2, size=2, max_length=3)


@pytest.mark.parametrize("number", [torch.float64, torch.bfloat16])
def test_models_of_other_number_types_are_searched_too(source, number):
    model = Reader(11, seed=4)
    expected = beam(model.float(), source, size=3, max_length=9, n_best=2)
    found = beam(model.to(number), source.to(number), size=3, max_length=9, n_best=2)
    for one, other in zip(found.best, expected.best, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, rel=0.1)
