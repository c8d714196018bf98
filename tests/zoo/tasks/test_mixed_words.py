import pytest

from saccade.zoo.tasks.rare_words import MixedWords, spell, unspell
from saccade.zoo.tasks.vocabulary import UNK

TEXTS = ["Miki sat on the mat.", "the cat sat on the mat.", "the mat."]


@pytest.fixture
def mixed():
    return MixedWords.build(TEXTS, n_words=4)


def test_gnmts_example_is_spelled_with_its_marks():
    assert " ".join(spell("Miki")) == "<B>M <M>i <M>k <E>i"


def test_known_words_stay_whole_and_others_are_spelled(mixed):
    assert mixed.pieces("the mat of Miki") == [
        *("the", "mat", "<B>o", "<E>f"),
        *("<B>M", "<M>i", "<M>k", "<E>i"),
    ]


@pytest.mark.parametrize("text", [*TEXTS, "tame cats, I moan on the mat."])
def test_a_text_of_known_characters_comes_back(mixed, text):
    known = text.replace("I ", "k ").replace(",", "")
    assert mixed.decode(mixed.encode(known)) == known


def test_an_unknown_character_is_unknown(mixed):
    assert mixed.encode("tЖ").count(UNK) == 1


@pytest.mark.parametrize("word", ["x", "ab", "abc", "<B>", "a<M>"])
def test_a_spelled_word_comes_back(word):
    assert unspell(spell(word)) == [word]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["<M>a", "<E>b"], ["ab"]),
        (["<B>a", "<B>b", "<E>c"], ["a", "bc"]),
        (["<B>a", "the", "<M>b"], ["a", "the", "b"]),
        (["<E>a", "<E>b"], ["a", "b"]),
    ],
)
def test_marks_in_an_order_that_makes_no_sense_still_give_words(pieces, words):
    assert unspell(pieces) == words
