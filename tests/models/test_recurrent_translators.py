"""Laws for every recurrent translator: sequence to sequence, Cho's, RCTM, GNMT, hybrid."""

import pytest
import torch

from saccade.cells import select_rows
from saccade.decoding import Stepper, beam, greedy
from saccade.models.continuous_translation import ContinuousTranslation
from saccade.models.gnmt import Gnmt
from saccade.models.hybrid_translator import HybridTranslator
from saccade.models.rnn_encoder_decoder import RnnEncoderDecoder
from saccade.models.seq2seq import Seq2Seq
from saccade.objectives import token_loss
from saccade.tasks import EOS, UNK, Padded, Pairs, Ragged
from saccade.tasks.spelled_words import END_OF_WORD, FIRST_WORD

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


def log_probs_by_stepping(model, batch):
    """One sentence after the other, one token after the other."""
    found = []
    for row in range(len(batch.source)):
        real = batch.source_mask[row]
        ids = batch.source[row][real][None]
        memory, state = model.start(Padded(ids, torch.ones_like(ids, dtype=torch.bool)))
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
    follow = torch.tensor([5, 7, 11]) + (W if batch.source.max() >= W else 0)
    second = model.step(follow.repeat(len(tokens)), memory, together.state)
    for place, token in enumerate(follow):
        alone = model.step(token.expand(len(tokens)), memory, first.state)
        torch.testing.assert_close(second.log_probs[place::n], alone.log_probs)
        if alone.weights is not None:
            torch.testing.assert_close(second.weights[place::n], alone.weights)


def test_gradients_reach_every_weight(model, batch):
    targets = batch.target_out[batch.target_mask]
    token_loss(model.train()(batch), targets).loss.backward()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_a_beam_finds_at_least_what_greedy_search_does(model, batch):
    source = Padded(batch.source, batch.source_mask)
    plain = greedy(model, source, max_length=7)
    found = beam(model, source, size=5, max_length=7).best
    for one, best in zip(plain, found, strict=True):
        if len(one.ids) < 7:  # it has come to its end
            assert best.log_prob >= one.log_prob - 1e-4


@torch.no_grad()
def test_weights_sum_to_one_at_every_step_and_are_zero_on_padding(name, model, batch):
    source = Padded(batch.source, batch.source_mask)
    for row, found in enumerate(beam(model, source, size=2, max_length=5).best):
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
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    right = batch.target_out[batch.target_mask]
    for _ in range(steps):
        optimiser.zero_grad()
        loss = token_loss(model(batch), right).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    found = greedy(model.eval(), Padded(batch.source, batch.source_mask), max_length=11)
    assert [one.ids for one in found] == targets, loss.item()
    assert all(EOS not in one.ids for one in found)
