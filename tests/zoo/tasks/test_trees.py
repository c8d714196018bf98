import pytest

from saccade.errors import TaskError, UsageError
from saccade.zoo.metrics.sequence_metrics import Bracket
from saccade.zoo.tasks.treebank import (
    brackets_of,
    delinearise,
    linearise,
    part_of,
    plain_tree,
    read_treebank,
    read_trees,
    score_trees,
)

JOHN = "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))"
WORDS = ["John", "has", "a", "dog", "."]


def tree(text):
    (read,) = read_trees(text)
    return read


def guess(pieces):
    return delinearise(pieces.split(), WORDS).tree


def test_a_tree_is_read_as_it_is_written():
    assert str(tree(JOHN)) == JOHN
    assert tree(JOHN).words() == WORDS
    assert str(tree("( (S\n  (NP (NNP John) )\n (VP (VBZ sleeps))) )")) == (
        "(S (NP (NNP John)) (VP (VBZ sleeps)))"
    )
    assert len(read_trees(f"{JOHN} ({JOHN})")) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("(S (NP", r"\(NP is never closed"),
        ("S", "unexpected 'S'"),
        ("(S (NN x)))", r"unexpected '\)'"),
        ("(S (NP John Smith))", "unexpected 'John'"),
        ("(S (NP))", r"\(NP holds nothing"),
        ("(S) )", r"\(S holds nothing"),
        ("(S word (NP (NN x)))", "unexpected 'word'"),
    ],
)
def test_a_broken_tree_is_refused(text, words):
    with pytest.raises(TaskError, match=words):
        read_trees(text, "wsj_0001.mrg")


def test_traces_and_function_tags_are_taken_off():
    text = (
        "(S (NP-SBJ-1 (NNP John)) (VP=2 (VB go) (S-PRP (NP (-NONE- *-1)) (VP (-NONE- *)))"
        " (ADVP|PRT (RB up))) (-LRB- -LRB-))"
    )
    plain = "(S (NP (NNP John)) (VP (VB go) (ADVP (RB up))) (-LRB- -LRB-))"
    assert str(plain_tree(tree(text))) == plain
    assert plain_tree(tree("(S (NP (-NONE- *)))")) is None


def test_vinyals_example_is_linearised_as_in_the_paper():
    tags = " ".join(linearise(tree(JOHN), leaf=lambda leaf: leaf.label))
    assert tags == "(S (NP NNP )NP (VP VBZ (NP DT NN )NP )VP . )S"
    assert " ".join(linearise(tree(JOHN))) == "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"


def test_a_linearised_tree_is_read_back():
    done = delinearise(linearise(tree(JOHN)), WORDS)
    assert done.n_repairs == 0
    assert str(done.tree) == ("(S (NP (XX John)) (VP (XX has) (NP (XX a) (XX dog))) (XX .))")


@pytest.mark.parametrize(
    ("pieces", "words", "repaired", "n"),
    [
        ("(S (NP XX", "a b", "(S (NP (XX a)) (XX b))", 3),
        ("(S (NP XX )S", "a", "(S (NP (XX a)))", 1),
        ("(S XX )NP )S", "a", "(S (XX a))", 1),
        ("(S XX XX )S", "a", "(S (XX a))", 1),
        ("(S XX (NP )NP )S", "a", "(S (XX a))", 1),
        ("(S XX )S (NP XX )NP", "a b", "(TOP (S (XX a)) (NP (XX b)))", 1),
        ("XX", "a", "(TOP (XX a))", 1),
        ("", "a b", "(TOP (XX a) (XX b))", 3),
        (")S ( ) XX", "a b", "(TOP (XX a) (XX b))", 3),
    ],
)
def test_a_malformed_tree_is_repaired_and_keeps_its_words(pieces, words, repaired, n):
    done = delinearise(pieces.split(), words.split())
    assert str(done.tree) == repaired
    assert done.tree.words() == words.split()
    assert done.n_repairs == n


def test_any_sequence_of_pieces_becomes_a_tree_over_the_words():
    import random

    draw = random.Random(5)
    for _ in range(300):
        pieces = draw.choices(["(S", ")S", "(NP", ")NP", "(VP", ")VP", "XX", "<unk>"], k=17)
        done = delinearise(pieces, WORDS)
        assert done.tree.words() == WORDS
        again = delinearise(linearise(done.tree), WORDS)
        assert sorted(brackets_of(again.tree)) == sorted(brackets_of(done.tree))


def test_brackets_are_counted_without_tags_and_without_skipped_words():
    assert sorted(brackets_of(tree(JOHN), frozenset({4}))) == [
        Bracket("NP", 0, 1),
        Bracket("NP", 2, 4),
        Bracket("S", 0, 4),
        Bracket("VP", 1, 4),
    ]
    assert brackets_of(tree("(TOP (S (NP (. .)) (NP (NN x))))"), frozenset({0})) == [
        Bracket("NP", 0, 1),
        Bracket("S", 0, 1),
    ]


def test_punctuation_attached_elsewhere_is_no_mistake():
    low = guess("(S (NP XX )NP (VP XX (NP XX XX XX )NP )VP )S")
    assert score_trees([tree(JOHN)], [low]).f1 == 100
    wrong = guess("(S (NP XX XX )NP (VP (NP XX XX XX )NP )VP )S")
    # Right are S(0, 4) and NP(2, 4), of four on either side.
    assert score_trees([tree(JOHN)], [wrong])[:3] == (50, 50, 50)


def test_trees_over_other_words_are_refused():
    with pytest.raises(TaskError, match="tree 1 is over 1 words and its gold tree over 5"):
        score_trees([tree(JOHN)], [tree("(S (NN dog))")])
    with pytest.raises(UsageError, match="0 predicted trees and 1 gold trees"):
        score_trees([tree(JOHN)], [])


@pytest.fixture(scope="module")
def treebank(data_with):
    return read_treebank(data_with("treebank"))


def test_the_treebank_has_the_sentences_it_is_known_for(treebank):
    assert [len(part) for part in treebank] == [2936, 555, 423]
    assert treebank.train[0].words()[:3] == ["Pierre", "Vinken", ","]
    labels = {piece for each in treebank.train for piece in linearise(each)}
    assert not [label for label in labels if "-" in label or "=" in label or "NONE" in label]


def test_every_tree_of_the_treebank_survives_being_linearised(treebank):
    guesses = []
    for gold in treebank.test:
        done = delinearise(linearise(gold), gold.words())
        assert done.n_repairs == 0
        guesses.append(done.tree)
    assert score_trees(treebank.test, guesses)[:4] == (100, 100, 100, 100)


def test_long_sentences_can_be_left_out(data_with, treebank):
    short = read_treebank(data_with("treebank"), max_words=30)
    assert max(len(each.words()) for each in short.test) == 30
    assert short.test == [each for each in treebank.test if len(each.words()) <= 30]


def test_a_file_is_always_in_the_same_part():
    parts = [part_of(f"treebank/combined/wsj_{n:04}.mrg") for n in range(1, 200)]
    assert [parts.count(k) for k in range(3)] == [159, 20, 20]
