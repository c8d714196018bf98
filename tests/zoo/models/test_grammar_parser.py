"""The parser: all at once against step by step, and trees that are always trees."""

import pytest
import torch

from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.ensemble import Ensemble
from saccade.zoo.decoding.stepper import Stepper
from saccade.zoo.models.grammar_parser import GrammarParser
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.treebank import delinearise, linearise, read_trees
from saccade.zoo.tasks.vocabulary import EOS, Padded, Vocabulary

TREES = read_trees(
    """
    (S (NP (DT the) (NN cat)) (VP (VBD sat)))
    (S (NP (NNP John)) (VP (VBZ has) (NP (DT the) (NN dog))) (. .))
    (NP (NP (DT the) (NN mat)))
    (S (VP (VB sit) (PP (IN on) (NP (DT the) (NN mat)))))
    """
)
WORDS = Vocabulary.build(tree.words() for tree in TREES)
PIECES = Vocabulary.build(map(linearise, TREES))
CLASSES = [*range(len(WORDS) - 2), 4, 5]  # two words are of the classes of others


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make_model(**options):
    sizes = {"d_embed": 5, "d_hidden": 7, "n_tags": 3, "dropout": 0.0, **options}
    return GrammarParser(pieces=PIECES.words, classes=CLASSES, **sizes)


@pytest.fixture
def model():
    return make_model().eval()


@pytest.fixture
def pairs():
    words = WORDS.encode_all(tree.words() for tree in TREES)
    return Pairs.of(words, PIECES.encode_all(map(linearise, TREES)))


ALL = torch.arange(len(TREES))


def source_of(batch):
    return Padded(batch.source, batch.source_mask)


def test_forward_is_stepping_with_the_right_symbols(model, pairs):
    assert isinstance(model, Stepper)
    batch = pairs.batch(ALL)
    wanted = model(batch).log_softmax(-1)
    memory, state = model.start(source_of(batch))
    found = []
    for column in batch.target_in.unbind(1):
        log_probs, state = model.step(column, memory, state)[:2]
        found.append(log_probs)
    torch.testing.assert_close(torch.stack(found, 1)[batch.target_mask], wanted)


def test_padding_changes_nothing(model, pairs):
    apart = [model(pairs.batch(ALL[row : row + 1])) for row in range(len(TREES))]
    torch.testing.assert_close(model(pairs.batch(ALL)), torch.cat(apart))


def test_the_right_symbol_is_always_possible_and_most_others_are_not(model, pairs):
    batch = pairs.batch(ALL)
    logits = model(batch)
    right = logits.gather(1, batch.target_out[batch.target_mask][:, None])
    assert right.isfinite().all()
    assert logits.isinf().float().mean() > 0.4


def test_beams_share_what_was_read(model, pairs):
    batch = pairs.batch(ALL)
    together = beam(model, source_of(batch), size=3, max_length=40).best
    for row, found in enumerate(together):
        one = pairs.batch(ALL[row : row + 1])
        alone = beam(model, source_of(one), size=3, max_length=40).best[0]
        assert found.ids == alone.ids
        assert found.log_prob == pytest.approx(alone.log_prob, abs=1e-4)
        n_words = len(TREES[row].words())
        torch.testing.assert_close(found.weights[:, : n_words + 1], alone.weights)
        assert (found.weights[:, n_words + 1 :] == 0).all()


def test_weights_sum_to_one_at_every_step(model, pairs):
    found = beam(model, source_of(pairs.batch(ALL)), size=2, max_length=40).best
    for one in found:
        torch.testing.assert_close(one.weights.sum(-1), torch.ones(len(one.ids) + 1))


def test_an_untrained_parser_writes_trees_that_need_no_repair(pairs):
    for seed in range(3):
        torch.manual_seed(seed)
        model = make_model().eval()
        found = beam(model, source_of(pairs.batch(ALL)), size=2, max_length=100).best
        for one, tree in zip(found, TREES, strict=True):
            done = delinearise(PIECES.decode(one.ids), tree.words())
            assert done.n_repairs == 0
            assert done.tree.words() == tree.words()


def test_an_ensemble_writes_trees_too(pairs):
    models = [make_model().eval() for _ in range(2)]
    found = beam(Ensemble(models), source_of(pairs.batch(ALL)), size=2, max_length=100).best
    for one, tree in zip(found, TREES, strict=True):
        assert delinearise(PIECES.decode(one.ids), tree.words()).n_repairs == 0


def test_gradients_reach_every_weight_that_learns(pairs):
    model, batch = make_model(), pairs.batch(ALL)
    encoded = model.encode(batch.source, batch.source_mask)
    loss = token_loss(model.write(encoded, batch), batch.target_out[batch.target_mask]).loss
    (loss + model.tag(encoded).square().mean()).backward()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.isfinite().all(), name
            assert weight.grad.abs().sum() > 0, name


def test_words_of_one_class_share_a_part_of_their_meaning():
    model = make_model()
    ids = torch.tensor([[len(WORDS) - 1, EOS]])
    mask = torch.ones(1, 2, dtype=torch.bool)
    before = model.encode(ids, mask)
    with torch.no_grad():
        model.source_embed.weight[CLASSES[-1]] += 1.0
    assert not torch.allclose(model.encode(ids, mask), before)


def test_a_few_trees_are_learnt_by_heart_in_seconds(pairs):
    model, batch = make_model(d_embed=16, d_hidden=24, n_layers=1), pairs.batch(ALL)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(40):
        loss = token_loss(model(batch), batch.target_out[batch.target_mask]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    found = beam(model.eval(), source_of(batch), size=2, max_length=60).best
    assert [PIECES.decode(one.ids) for one in found] == [linearise(tree) for tree in TREES]
