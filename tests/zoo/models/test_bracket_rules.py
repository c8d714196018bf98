"""What may follow in a linearised tree, against trees written out one by one."""

import itertools

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.models import grammar_parser as bracket_rules
from saccade.zoo.models.grammar_parser import BracketRules
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.treebank import delinearise, linearise, read_treebank
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, SYMBOLS, Ragged, Vocabulary

PIECES = (*SYMBOLS, "XX", "(A", ")A", "(B", ")B")
XX, OPEN_A, CLOSE_A, OPEN_B, CLOSE_B = range(4, 9)


@pytest.fixture
def rules():
    return BracketRules(PIECES)


def is_tree(ids, n_words):
    """Whether this is one tree over so many words, read with a stack of how much each holds."""
    open_brackets = []
    for place, piece in enumerate(PIECES[each] for each in ids):
        if place and not open_brackets:
            return False  # the tree is over
        if piece[0] == "(":
            open_brackets.append([piece[1:], 0])
        elif not open_brackets:
            return False
        elif piece == "XX":
            open_brackets[-1][1] += 1
        else:
            label, n_inside = open_brackets.pop()
            if label != piece[1:] or n_inside == 0:
                return False
            if open_brackets:
                open_brackets[-1][1] += 1
    return not open_brackets and [PIECES[each] for each in ids].count("XX") == n_words


def continuations(rules, n_words, length):
    """Every sequence that keeps to the rules, by trying each legal symbol."""
    found, ahead = (
        [],
        [([], rules.after(torch.tensor([BOS]), rules.begin(torch.tensor([n_words]))))],
    )
    while ahead:
        ids, brackets = ahead.pop()
        legal = rules.legal(brackets)[0].nonzero()[:, 0].tolist()
        assert legal, f"nothing can follow {ids}"
        for token in legal:
            if token == EOS:
                found.append(tuple(ids))
            elif len(ids) < length:
                ahead.append(([*ids, token], rules.after(torch.tensor([token]), brackets)))
    return found


@pytest.mark.parametrize("n_words", [1, 2])
def test_what_can_be_written_by_the_rules_is_every_tree_and_nothing_else(rules, n_words):
    length = 6
    written = continuations(rules, n_words, length)
    assert len(set(written)) == len(written)
    everything = itertools.chain.from_iterable(
        itertools.product(range(4, 9), repeat=n) for n in range(1, length + 1)
    )
    assert set(written) == {ids for ids in everything if is_tree(ids, n_words)}


def test_rows_are_judged_each_for_itself(rules):
    tokens = torch.tensor([[BOS, OPEN_A, XX, CLOSE_A], [BOS, OPEN_B, OPEN_A, XX]])
    n_words = torch.tensor([1, 3])
    legal = rules.legal_all_along(tokens, n_words)
    allowed = [[set(place.nonzero()[:, 0].tolist()) for place in row] for row in legal]
    opens = {OPEN_A, OPEN_B}
    assert allowed[0] == [opens, {XX, *opens}, {CLOSE_A}, {EOS}]
    assert allowed[1] == [opens, {XX, *opens}, {XX, *opens}, {XX, CLOSE_A, *opens}]


def test_brackets_are_so_many_for_each_word_and_so_every_tree_comes_to_an_end(rules):
    n = 2 * bracket_rules.BRACKETS_A_WORD
    tokens = torch.tensor([[BOS, *[OPEN_A] * n], [BOS, *[OPEN_A] * (n - 1), XX]])
    legal = rules.legal_all_along(tokens, torch.tensor([2, 2]))[:, -1]
    assert legal[0].nonzero()[:, 0].tolist() == [XX]
    assert legal[1, OPEN_A] and legal[1, CLOSE_A]
    generator = torch.Generator().manual_seed(0)
    n_words = torch.randint(1, 7, (500,), generator=generator)
    brackets, limit = rules.begin(n_words), rules.most_symbols(n_words)
    n_said, is_over = torch.zeros(500, dtype=torch.long), torch.zeros(500, dtype=torch.bool)
    for _ in range(int(limit.max())):  # whatever is said, so that nothing favours the end
        chances = rules.legal(brackets).float() * torch.rand(len(PIECES), generator=generator)
        chances[:, OPEN_A] *= 20
        token = torch.where(is_over, PAD, chances.argmax(1))
        n_said += ~is_over
        is_over |= token == EOS
        brackets = rules.after(token, brackets)
    assert is_over.all() and (n_said <= limit).all()
    assert (n_said == limit).any()


def test_symbols_that_make_no_trees_are_refused():
    with pytest.raises(UsageError, match=r"these symbols cannot form trees: \)A"):
        BracketRules((*SYMBOLS, "XX", "(A"))
    with pytest.raises(UsageError, match="no XX"):
        BracketRules((*SYMBOLS, "(A", ")A"))


def test_every_tree_of_the_treebank_can_be_written(data_with):
    trees = read_treebank(data_with("treebank")).test
    pieces = Vocabulary.build(map(linearise, trees))
    rules = BracketRules(pieces.words)
    ids = Ragged.of([pieces.encode(linearise(tree)) for tree in trees])
    pairs = Pairs.of(Ragged.of([[4] * len(tree.words()) for tree in trees]), ids)
    for batch in pairs.in_order(tokens=20_000):
        legal = rules.legal_all_along(batch.target_in, batch.source_mask.sum(1) - 1)
        right = legal.gather(2, batch.target_out[:, :, None])[:, :, 0]
        assert right[batch.target_mask].all()
    for tree in trees:
        assert delinearise(linearise(tree), tree.words()).n_repairs == 0
