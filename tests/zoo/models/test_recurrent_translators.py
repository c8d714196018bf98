"""Laws for every recurrent translator: sequence to sequence, Cho's, RCTM, GNMT, hybrid."""

import pytest
import torch
from translator_laws import (
    check_a_beam_finds_what_greedy_search_does,
    check_all_at_once_is_step_by_step,
    check_gradients_reach_every_weight,
    check_hypotheses_share_what_was_read,
    learn,
    source_of,
)

from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.stepper import Stepper
from saccade.zoo.models.continuous_translation import ContinuousTranslation
from saccade.zoo.models.gnmt import Gnmt
from saccade.zoo.models.hybrid_translator import HybridTranslator
from saccade.zoo.models.rnn_encoder_decoder import RnnEncoderDecoder
from saccade.zoo.models.seq2seq import Seq2Seq
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.rare_words import END_OF_WORD, FIRST_WORD
from saccade.zoo.tasks.vocabulary import EOS, UNK, Ragged

N_SOURCE, N_TARGET = 31, 37
W = FIRST_WORD


def rare(*letters):
    """A word that is spelled."""
    return [UNK, *(100 + letter for letter in letters), END_OF_WORD]


PLAIN = ([[7, 5, 11, 13], [17], [19, 23]], [[29, 5], [7, 11, 13, 17, 19], [23]])
SPELLED = (
    [[W + 1, *rare(1, 2, 3), W + 2], [W + 3], [*rare(5), *rare(7, 1)]],
    [[*rare(3, 1), W + 5], [W + 7, *rare(2), *rare(1, 2, 3, 5), W + 1], [W + 2]],
)
MODELS = {
    "seq2seq": lambda n, m: Seq2Seq(n_source=n, n_target=m, d_embed=5, d_hidden=7, n_layers=3),
    "cho": lambda n, m: RnnEncoderDecoder(
        n_source=n, n_target=m, d_embed=5, d_hidden=7, d_maxout=3
    ),
    "rctm": lambda n, m: ContinuousTranslation(n_source=n, n_target=m, d_model=7, n_kernels=2),
    "gnmt": lambda n, m: Gnmt(n_source=n, n_target=m, d_model=7, n_layers=4),
    "hybrid": lambda n, m: HybridTranslator(n_source=n, n_target=m, d_model=7, d_letter=5),
}
ATTENTIVE = {"gnmt", "hybrid"}


def pairs_for(name):
    source, target = SPELLED if name == "hybrid" else PLAIN
    return Pairs.of(Ragged.of(source), Ragged.of(target))


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    torch.manual_seed(0)
    sizes = (W + 11, W + 13) if name == "hybrid" else (N_SOURCE, N_TARGET)
    model = MODELS[name](*sizes)
    for weight in model.parameters():
        if weight.requires_grad:  # large enough that a difference would be seen
            torch.nn.init.normal_(weight, std=0.7)
    return model.eval()


@pytest.fixture
def batch(name):
    return pairs_for(name).batch(torch.arange(3))


def test_it_can_be_decoded(model):
    assert isinstance(model, Stepper)


def test_all_at_once_is_the_same_as_step_by_step_and_padding_changes_nothing(model, batch):
    check_all_at_once_is_step_by_step(model, batch)


def test_hypotheses_of_a_sentence_share_what_was_read(name, model, batch):
    follow = torch.tensor([5, 7, 11]) + (W if name == "hybrid" else 0)
    check_hypotheses_share_what_was_read(model, batch, follow)


def test_gradients_reach_every_weight(model, batch):
    check_gradients_reach_every_weight(model, batch)


def test_a_beam_finds_at_least_what_greedy_search_does(model, batch):
    check_a_beam_finds_what_greedy_search_does(model, batch)


@torch.no_grad()
def test_weights_sum_to_one_at_every_step_and_are_zero_on_padding(name, model, batch):
    for row, found in enumerate(beam(model, source_of(batch), size=2, max_length=5).best):
        if name not in ATTENTIVE:
            assert found.weights is None
            continue
        torch.testing.assert_close(found.weights.sum(-1), torch.ones(len(found.weights)))
        assert (found.weights[:, ~batch.source_mask[row]] == 0).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_tiny_task_is_learnt(name):
    torch.manual_seed(0)
    sizes = {"n_source": 11, "n_target": 11, "dropout": 0.0}
    first = 5
    if name == "hybrid":
        sizes |= {"n_source": W + 6, "n_target": W + 6}
        first = W
    model = {
        "seq2seq": lambda: Seq2Seq(**sizes, d_embed=16, d_hidden=32, n_layers=2),
        "cho": lambda: RnnEncoderDecoder(**sizes, d_embed=16, d_hidden=32, d_maxout=16),
        "rctm": lambda: ContinuousTranslation(**sizes, d_model=48),
        "gnmt": lambda: Gnmt(**sizes, d_model=24, n_layers=3),
        "hybrid": lambda: HybridTranslator(**sizes, d_model=24, d_letter=16),
    }[name]()
    words = [[i + first, j + first] for i in range(6) for j in range(6)]
    targets = [[b, a] for a, b in words]  # say it backwards
    if name == "hybrid":  # the last word has to be spelled, on both sides
        spelled = {W + 5: rare(1, 2)}
        words = [[t for each in row for t in spelled.get(each, [each])] for row in words]
        targets = [[t for each in row for t in spelled.get(each, [each])] for row in targets]
    batch = Pairs.of(Ragged.of(words), Ragged.of(targets)).batch(torch.arange(36))
    # Two LSTMs on top of each other take their time.
    rate, steps = (0.01, 400) if name == "seq2seq" else (0.02, 80)
    found, loss = learn(model, batch, rate=rate, steps=steps)
    assert found == targets, loss
    assert all(EOS not in ids for ids in found)
