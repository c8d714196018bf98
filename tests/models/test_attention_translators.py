"""Laws for the translators of Bahdanau and of Luong, in every variant."""

import itertools

import pytest
import torch

from saccade.cells import select_rows
from saccade.decoding import Stepper, beam, greedy
from saccade.models.bahdanau import BahdanauTranslator
from saccade.models.luong import LuongTranslator, luong_attention
from saccade.objectives import token_loss
from saccade.tasks import Padded, Pairs, Ragged

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


def alone(batch, row):
    """A source without any padding."""
    ids = batch.source[row][batch.source_mask[row]][None]
    return Padded(ids, torch.ones_like(ids, dtype=torch.bool))


def log_probs_by_stepping(model, batch):
    """One sentence after the other, one token after the other."""
    found = []
    for row in range(len(batch.source)):
        memory, state = model.start(alone(batch, row))
        for token in batch.target_in[row][batch.target_mask[row]]:
            stepped = model.step(token[None], memory, state)
            state = stepped.state
            found.append(stepped.log_probs[0])
    return torch.stack(found)


def test_it_can_be_decoded(model):
    assert isinstance(model, Stepper)


@torch.no_grad()
def test_all_at_once_is_the_same_as_step_by_step_and_padding_changes_nothing(model, batch):
    at_once = model(batch).log_softmax(-1)
    assert len(at_once) == batch.n_tokens
    torch.testing.assert_close(at_once, log_probs_by_stepping(model, batch), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_hypotheses_of_a_sentence_share_what_was_read(model, batch):
    source, n = Padded(batch.source, batch.source_mask), 3
    memory, state = model.start(source)
    tokens = batch.target_in[:, 0]
    first = model.step(tokens, memory, state)
    rows = torch.arange(len(tokens)).repeat_interleave(n)
    together = model.step(tokens[rows], memory, select_rows(state, rows))
    torch.testing.assert_close(together.log_probs, first.log_probs[rows])
    follow = torch.tensor([5, 7, 11])
    second = model.step(follow.repeat(len(tokens)), memory, together.state)
    for place, token in enumerate(follow):
        single = model.step(token.expand(len(tokens)), memory, first.state)
        torch.testing.assert_close(second.log_probs[place::n], single.log_probs)
        torch.testing.assert_close(second.weights[place::n], single.weights)


def test_gradients_reach_every_weight(name, model, batch):
    targets = batch.target_out[batch.target_mask]
    token_loss(model.train()(batch), targets).loss.backward()
    for path, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, path


def test_a_beam_finds_at_least_what_greedy_search_does(model, batch):
    source = Padded(batch.source, batch.source_mask)
    plain = greedy(model, source, max_length=7)
    found = beam(model, source, size=5, max_length=7).best
    for one, best in zip(plain, found, strict=True):
        if len(one.ids) < 7:  # it has come to its end
            assert best.log_prob >= one.log_prob - 1e-4


@torch.no_grad()
def test_weights_sum_to_one_and_are_zero_on_padding(name, model, batch):
    source = Padded(batch.source, batch.source_mask)
    for row, found in enumerate(beam(model, source, size=2, max_length=5).best):
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
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    right = batch.target_out[batch.target_mask]
    for _ in range(60):
        optimiser.zero_grad()
        loss = token_loss(model(batch), right).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    found = greedy(model.eval(), Padded(batch.source, batch.source_mask), max_length=11)
    assert [one.ids for one in found] == targets, loss.item()


def test_a_reversed_source_is_read_backwards(batch):
    torch.manual_seed(0)
    model = bahdanau("maxout").eval()
    rows = Ragged.of([[7, 5, 11], [17, 19]]), Ragged.of([[29, 5], [23]])
    turned = Ragged.of([[11, 5, 7], [19, 17]]), rows[1]
    backwards = Pairs.of(*rows, is_reversed=True).batch(torch.arange(2))
    forwards = Pairs.of(*turned).batch(torch.arange(2))
    with torch.no_grad():
        torch.testing.assert_close(model(backwards), model(forwards))
