import pytest
import torch

from saccade.zoo.decoding.beam import beam
from saccade.zoo.models.hybrid_translator import HybridTranslator
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.rare_words import END_OF_WORD, FIRST_WORD, UNSEEN
from saccade.zoo.tasks.vocabulary import BOS, EOS, UNK, Padded, Ragged

W = FIRST_WORD
SOURCE = [[W + 1, UNK, 100, 101, END_OF_WORD, W + 2], [W + 3]]
TARGET = [[UNK, 103, END_OF_WORD, W + 5], [W + 1]]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return HybridTranslator(n_source=W + 7, n_target=W + 11, d_model=5, d_letter=3).eval()


def started(model, rows=SOURCE):
    batch = Pairs.of(Ragged.of(rows), Ragged.of(TARGET)).batch(torch.arange(len(rows)))
    return model.start(Padded(batch.source, batch.source_mask))


@torch.no_grad()
def test_words_follow_words_and_letters_follow_letters(model):
    memory, state = started(model)
    for token in (BOS, W + 1, END_OF_WORD):
        probs = model.step(torch.full((2,), token), memory, state).log_probs.exp()
        assert (probs[:, END_OF_WORD:W] == 0).all() and (probs[:, [0, BOS]] == 0).all()
        assert (probs[:, [EOS, UNK, *range(W, W + 11)]] > 0).all()
        torch.testing.assert_close(probs.sum(-1), torch.ones(2))
    for token in (UNK, 100, UNSEEN):
        probs = model.step(torch.full((2,), token), memory, state).log_probs.exp()
        assert (probs[:, END_OF_WORD:W] > 0).all()
        assert (probs[:, :END_OF_WORD] == 0).all() and (probs[:, W:] == 0).all()
        torch.testing.assert_close(probs.sum(-1), torch.ones(2))


@torch.no_grad()
def test_an_unknown_source_word_is_known_by_its_letters(model):
    other = [[W + 1, UNK, 101, 100, END_OF_WORD, W + 2], [W + 3]]
    tokens = torch.full((2,), BOS)
    found = [model.step(tokens, *started(model, rows)).log_probs for rows in (SOURCE, other)]
    assert not torch.allclose(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


@torch.no_grad()
def test_the_word_level_takes_no_step_while_a_word_is_spelled(model):
    memory, state = started(model)
    said = model.step(torch.full((2,), W + 1), memory, state)
    spelled = said
    for letter in (UNK, 100, 101):
        spelled = model.step(torch.full((2,), letter), memory, spelled.state)
        torch.testing.assert_close(spelled.weights, said.weights)
    after_letters = model.step(torch.full((2,), END_OF_WORD), memory, spelled.state)
    at_once = model.step(torch.full((2,), END_OF_WORD), memory, said.state)
    torch.testing.assert_close(after_letters.log_probs, at_once.log_probs)


@torch.no_grad()
def test_a_spelled_source_word_is_attended_at_its_unk(model):
    memory, state = started(model)
    weights = model.step(torch.full((2,), BOS), memory, state).weights
    assert (weights[0, [0, 1, 5, 6]] > 0).all()  # two words, the unknown one, the end
    assert (weights[0, [2, 3, 4]] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2))


def test_a_batch_without_rare_words_is_read_too(model):
    pairs = Pairs.of(Ragged.of([[W + 1], [W + 2, W + 3]]), Ragged.of([[W + 5], [W + 1]]))
    logits = model(pairs.batch(torch.arange(2)))
    alone = torch.cat([model(pairs.batch(torch.tensor([row]))) for row in range(2)])
    assert logits.shape == (4, W + 11)
    torch.testing.assert_close(logits, alone)


def test_a_beam_holds_words_and_letters_alike(model):
    batch = Pairs.of(Ragged.of(SOURCE), Ragged.of(TARGET)).batch(torch.arange(2))
    source = Padded(batch.source, batch.source_mask)
    found = beam(model, source, size=7, max_length=9, n_best=7).hypotheses
    assert all(len(each) == 7 for each in found)
    for one in found[0]:  # a spelling that was begun is ended, unless the length limit came first
        opened = sum(each == UNK for each in one.ids)
        closed = sum(each == END_OF_WORD for each in one.ids)
        assert opened - closed in (0, 1)


def test_a_single_rare_word_goes_through_where_products_are_rounded(model):
    """Of one sequence torch's LSTM gives the kind of numbers it computes with, of several not."""
    batch = Pairs.of(Ragged.of(SOURCE), Ragged.of(TARGET)).batch(torch.arange(2))
    exact = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(batch)
    torch.testing.assert_close(rounded.float(), exact, atol=0.02, rtol=0.02)
