"""The recurrent language model, and the one without a memory."""

import pytest
import torch

from saccade.zoo.cells.cell import tensors_of
from saccade.zoo.decoding.greedy import greedy, sample
from saccade.zoo.decoding.stepper import Stepper
from saccade.zoo.models.language_model import LanguageModel
from saccade.zoo.models.memoryless_language_model import MemorylessLanguageModel
from saccade.zoo.models.rnn_language_model import RnnLanguageModel
from saccade.zoo.objectives.likelihood import token_loss

BATCH, STEPS, D_VOCAB, D_EMBED, D_HIDDEN = 3, 7, 13, 5, 11
SIZES = {"d_vocab": D_VOCAB, "d_embed": D_EMBED, "d_hidden": D_HIDDEN}
MODELS = {
    "lstm": lambda: RnnLanguageModel(**SIZES),
    "three layers of gru": lambda: RnnLanguageModel(**SIZES, cell="gru", n_layers=3),
    "elman with dropout": lambda: RnnLanguageModel(**SIZES, cell="elman", dropout=(0.2, 0.5)),
    "tied through a map": lambda: RnnLanguageModel(**SIZES, is_tied=True),
    "tied": lambda: RnnLanguageModel(d_vocab=D_VOCAB, d_embed=7, d_hidden=7, is_tied=True),
    "memoryless": lambda: MemorylessLanguageModel(**SIZES, n_context=3),
    "memoryless, direct": lambda: MemorylessLanguageModel(**SIZES, n_context=2, is_direct=True),
    "bigram": lambda: MemorylessLanguageModel(**SIZES, n_context=1, dropout=0.5),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(params=MODELS, ids=str)
def model(request) -> LanguageModel:
    return MODELS[request.param]().eval()


@pytest.fixture
def tokens():
    return torch.randint(4, D_VOCAB, (BATCH, STEPS))


def test_reading_in_pieces_is_reading_at_once(model, tokens):
    whole = model(tokens)
    first = model(tokens[:, :2])
    second = model(tokens[:, 2:], first.state)
    pieces = torch.cat([first.logits, second.logits], dim=1)
    torch.testing.assert_close(pieces, whole.logits)
    for one, other in zip(tensors_of(second.state), tensors_of(whole.state), strict=True):
        torch.testing.assert_close(one, other)


def test_reading_is_stepping(model, tokens):
    assert isinstance(model, Stepper)
    wanted = model(tokens).logits.log_softmax(-1)
    memory, state = model.start(BATCH)
    for place, column in enumerate(tokens.unbind(1)):
        log_probs, state = model.step(column, memory, state)[:2]
        torch.testing.assert_close(log_probs, wanted[:, place])


def test_what_comes_later_changes_nothing_before(model, tokens):
    other = tokens.clone()
    other[:, 4] = 4 + (tokens[:, 4] - 3) % (D_VOCAB - 4)
    assert not torch.equal(other, tokens)
    before, after = model(tokens).logits, model(other).logits
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4], after[:, 4])


def test_gradients_reach_every_weight_that_learns(model, tokens):
    model.train()
    token_loss(model(tokens).logits, tokens).loss.backward()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_influence_is_shares_of_what_was_read_and_never_of_what_was_not(model, tokens):
    text = tokens[0]
    weights = model.requires_grad_(False).influence_on(text)
    assert weights.shape == (STEPS - 1, STEPS - 1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(STEPS - 1))
    assert (weights.triu(1) == 0).all()


def test_one_without_a_memory_sees_its_window_and_no_further():
    model = MemorylessLanguageModel(**SIZES, n_context=3).eval()
    text = torch.randint(4, D_VOCAB, (STEPS,))
    weights = model.influence_on(text)
    assert (weights.tril(-3) == 0).all()
    assert (weights.tril(-2) > 0).any()
    logits = model(torch.stack([text, text.roll(2)])).logits
    changed = text.clone()
    changed[1] = 4 + (text[1] - 3) % (D_VOCAB - 4)
    torch.testing.assert_close(model(changed[None]).logits[0, 4:], logits[0, 4:])


def test_the_memoryless_model_is_the_papers_equation():
    model = MemorylessLanguageModel(**SIZES, n_context=2, is_direct=True)
    tokens = torch.randint(4, D_VOCAB, (BATCH, STEPS))
    logits = model(tokens).logits
    c = model.embed.weight
    for row in range(BATCH):
        for place in range(1, STEPS):
            x = torch.cat([c[tokens[row, place - 1]], c[tokens[row, place]]])
            hidden = torch.tanh(model.hidden.weight @ x + model.hidden.bias)
            y = model.output.bias + model.direct.weight @ x + model.output.weight @ hidden
            torch.testing.assert_close(logits[row, place], y)


def test_the_lstm_is_torchs():
    model = RnnLanguageModel(**SIZES)
    theirs = torch.nn.LSTM(D_EMBED, D_HIDDEN, num_layers=2, batch_first=True)
    for layer, cell in enumerate(model.layers):
        for own, other in zip(theirs.all_weights[layer], cell.kernel.all_weights[0], strict=True):
            own.data.copy_(other)
    tokens = torch.randint(D_VOCAB, (BATCH, STEPS))
    hidden = theirs(model.embed(tokens))[0]
    torch.testing.assert_close(model(tokens).logits, hidden @ model.output.T + model.bias)


def test_tied_weights_are_stored_once():
    model = RnnLanguageModel(**SIZES, is_tied=True)
    assert sum(weight.shape[0] == D_VOCAB for weight in model.state_dict().values()) == 2
    assert model.output is None  # the embedding, and the bias


def learnt(model, texts, *, steps=150, rate=0.02):
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        loss = token_loss(model(texts[:, :-1]).logits, texts[:, 1:]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return loss.item()


def test_the_recurrent_model_remembers_what_the_memoryless_one_cannot():
    # The last symbol is the first; between them is always the same.
    first = torch.arange(4, 12)
    texts = torch.stack([torch.tensor([1, a, 12, 12, 12, 12, a, 2]) for a in first.tolist()])
    n_targets, chance = texts.shape[1] - 1, torch.log(torch.tensor(8.0)).item()
    recurrent = learnt(RnnLanguageModel(**SIZES, n_layers=1), texts, steps=400)
    forgetful = learnt(MemorylessLanguageModel(**SIZES, n_context=3), texts)
    # The first of them can only be guessed by either, one in eight; the second by the first alone.
    assert recurrent == pytest.approx(chance / n_targets, abs=0.05)
    assert forgetful > 1.8 * chance / n_targets


def test_a_text_learnt_by_heart_is_said_again():
    text = torch.tensor([[1, 7, 5, 9, 5, 11, 4, 7, 2]])
    model = RnnLanguageModel(**SIZES, n_layers=1)
    learnt(model, text)
    said = greedy(model.eval(), 2, max_length=20)
    assert [one.ids for one in said] == [text[0, 1:-1].tolist()] * 2
    drawn = sample(model, 2, max_length=20, temperature=0.1)
    assert drawn[1][0].ids == said[0].ids
