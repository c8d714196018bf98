"""The LSTM that reads a program and writes what it prints."""

import pytest
import torch

from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Stepper
from saccade.zoo.models.program_executor import ProgramExecutor
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.tasks.pairs import Pairs, encode_pairs, encode_sources
from saccade.zoo.tasks.programs import program_tokenizer
from saccade.zoo.tasks.vocabulary import Padded, Ragged

D_VOCAB, D_EMBED, D_HIDDEN = 13, 5, 11
SOURCES = [[4, 5, 6, 7, 8], [9, 4], [12, 11, 10]]
TARGETS = [[5, 6], [7, 8, 9], [4]]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def model():
    return ProgramExecutor(d_vocab=D_VOCAB, d_embed=D_EMBED, d_hidden=D_HIDDEN).eval()


@pytest.fixture
def pairs():
    return Pairs.of(Ragged.of(SOURCES), Ragged.of(TARGETS))


def logits_of(model, pairs, row):
    return model(pairs.batch(torch.tensor([row])))


def test_reading_and_writing_are_one_sequence_to_one_lstm(model, pairs):
    """Program, end, beginning, result: through torch's own LSTM in one go."""
    theirs = torch.nn.LSTM(D_EMBED, D_HIDDEN, num_layers=2, batch_first=True)
    for layer, cell in enumerate(model.cell.layers):
        for own, other in zip(theirs.all_weights[layer], cell.kernel.all_weights[0], strict=True):
            own.data.copy_(other)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        ids = torch.tensor([[*source, 2, 1, *target]])
        hidden = theirs(model.embed(ids))[0][0, len(source) + 1 :]
        torch.testing.assert_close(logits_of(model, pairs, row), model.output(hidden))


def test_padding_changes_nothing(model, pairs):
    together = model(pairs.batch(torch.tensor([0, 1, 2])))
    apart = [logits_of(model, pairs, row) for row in range(3)]
    torch.testing.assert_close(together, torch.cat(apart))


def test_forward_is_stepping_with_the_right_characters(model, pairs):
    assert isinstance(model, Stepper)
    batch = pairs.batch(torch.tensor([0, 1, 2]))
    wanted = model(batch).log_softmax(-1)
    memory, state = model.start(Padded(batch.source, batch.source_mask))
    found = []
    for column in batch.target_in.unbind(1):
        log_probs, state = model.step(column, memory, state)[:2]
        found.append(log_probs)
    torch.testing.assert_close(torch.stack(found, 1)[batch.target_mask], wanted)


def test_a_beam_finds_for_each_program_what_it_finds_for_it_alone(model, pairs):
    batch = pairs.batch(torch.tensor([0, 1, 2]))
    source = Padded(batch.source, batch.source_mask)
    together = beam(model, source, size=3, max_length=5).best
    for row, found in enumerate(together):
        one = pairs.batch(torch.tensor([row]))
        alone = beam(model, Padded(one.source, one.source_mask), size=3, max_length=5).best[0]
        assert found.ids == alone.ids
        assert found.log_prob == pytest.approx(alone.log_prob, abs=1e-5)


def test_gradients_reach_every_weight_that_learns(model, pairs):
    batch = pairs.batch(torch.tensor([0, 1, 2]))
    token_loss(model.train()(batch), batch.target_out[batch.target_mask]).loss.backward()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_influence_is_shares_of_the_program(model, pairs):
    weights = model.requires_grad_(False).influence_on(pairs.batch(torch.tensor([1])))
    assert weights.shape == (len(TARGETS[1]) + 1, len(SOURCES[1]) + 1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))


def test_it_learns_to_add_two_digits_in_seconds():
    torch.manual_seed(0)
    tokenizer = program_tokenizer()
    sums = [(a, b) for a in range(1, 5) for b in range(1, 5)]
    programs = [f"print(({a}+{b}))" for a, b in sums]
    pairs = encode_pairs(programs, [str(a + b) for a, b in sums], tokenizer=tokenizer)
    model = ProgramExecutor(d_vocab=len(tokenizer), d_embed=16, d_hidden=32, n_layers=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = pairs.batch(torch.arange(len(sums)))
    for _ in range(300):
        loss = token_loss(model(batch), batch.target_out[batch.target_mask]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    said = greedy(model.eval(), encode_sources(programs, tokenizer), max_length=4)
    assert [tokenizer.decode(one.ids) for one in said] == [str(a + b) for a, b in sums]
