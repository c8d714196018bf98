"""Laws for the translators of Bahdanau and of Luong, in every variant."""

import itertools

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
from saccade.zoo.models.bahdanau import BahdanauTranslator
from saccade.zoo.models.luong import LuongTranslator, luong_attention
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.vocabulary import Ragged

N_SOURCE, N_TARGET = 31, 37


def luong(score, view, *, is_fed=True, n=N_SOURCE, m=N_TARGET, d_hidden=7, dropout=0.3):
    attention = luong_attention(score, view, d_hidden=d_hidden, reach=2, max_length=11)
    return LuongTranslator(
        n_source=n, n_target=m, attention=attention, d_hidden=d_hidden, is_fed=is_fed,
        dropout=dropout,
    )  # fmt: skip


def bahdanau(output, *, n=N_SOURCE, m=N_TARGET, d_hidden=7, dropout=0.3):
    return BahdanauTranslator(
        n_source=n, n_target=m, d_embed=5, d_hidden=d_hidden, output=output, dropout=dropout
    )


MODELS = {
    "bahdanau-maxout": lambda **sizes: bahdanau("maxout", **sizes),
    "bahdanau-tanh": lambda **sizes: bahdanau("tanh", **sizes),
    "general-unfed": lambda **sizes: luong("general", "global", is_fed=False, **sizes),
    "local-m-unfed": lambda **sizes: luong("dot", "local-m", is_fed=False, **sizes),
    **{
        f"{score}-{view}": lambda score=score, view=view, **sizes: luong(score, view, **sizes)
        for score, view in itertools.product(
            ("dot", "general", "concat", "location"), ("global", "local-m", "local-p")
        )
    },
}
# One of each kind is enough to see whether it learns.
LEARNING = (
    *("bahdanau-maxout", "bahdanau-tanh", "general-unfed", "dot-global", "concat-local-p"),
    *("location-global", "general-local-m"),
)


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    for weight in model.parameters():
        if weight.requires_grad:  # large enough that a difference would be seen
            torch.nn.init.normal_(weight, std=0.7)
    return model.eval()


@pytest.fixture
def batch():
    source, target = [[7, 5, 11, 13, 17, 19], [17], [19, 23]], [[29, 5], [7, 11, 13, 17, 19], [23]]
    return Pairs.of(Ragged.of(source), Ragged.of(target)).batch(torch.arange(3))


def test_it_can_be_decoded(model):
    assert isinstance(model, Stepper)


def test_all_at_once_is_the_same_as_step_by_step_and_padding_changes_nothing(model, batch):
    check_all_at_once_is_step_by_step(model, batch)


def test_hypotheses_of_a_sentence_share_what_was_read(model, batch):
    check_hypotheses_share_what_was_read(model, batch, torch.tensor([5, 7, 11]))


def test_gradients_reach_every_weight(model, batch):
    check_gradients_reach_every_weight(model, batch)


def test_a_beam_finds_at_least_what_greedy_search_does(model, batch):
    check_a_beam_finds_what_greedy_search_does(model, batch)


@torch.no_grad()
def test_weights_sum_to_one_and_are_zero_on_padding(name, model, batch):
    for row, found in enumerate(beam(model, source_of(batch), size=2, max_length=5).best):
        total = found.weights.sum(-1)
        if name.endswith("local-p"):  # the Gaussian takes some away
            assert (total > 0).all() and (total <= 1 + 1e-5).all()
        else:
            torch.testing.assert_close(total, torch.ones(len(total)))
        assert (found.weights[:, ~batch.source_mask[row]] == 0).all()


@pytest.mark.parametrize("name", LEARNING)
def test_a_tiny_task_is_learnt(name):
    torch.manual_seed(0)
    model = MODELS[name](n=11, m=11, d_hidden=24, dropout=0.0)
    words = [[i + 5, j + 5] for i in range(5) for j in range(5)]
    targets = [[b, a] for a, b in words]  # say it backwards
    batch = Pairs.of(Ragged.of(words), Ragged.of(targets)).batch(torch.arange(25))
    found, loss = learn(model, batch, rate=0.02, steps=60)
    assert found == targets, loss


def test_a_reversed_source_is_read_backwards(batch):
    torch.manual_seed(0)
    model = bahdanau("maxout").eval()
    rows = Ragged.of([[7, 5, 11], [17, 19]]), Ragged.of([[29, 5], [23]])
    turned = Ragged.of([[11, 5, 7], [19, 17]]), rows[1]
    backwards = Pairs.of(*rows, is_reversed=True).batch(torch.arange(2))
    forwards = Pairs.of(*turned).batch(torch.arange(2))
    with torch.no_grad():
        torch.testing.assert_close(model(backwards), model(forwards))
