import pytest

from saccade.errors import TaskError
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, SYMBOLS, UNK, Vocabulary

SENTENCES = [["b", "a", "c"], ["a", "b", "a"], ["d"]]


def test_the_symbols_have_the_first_ids():
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert Vocabulary.build([]).words == SYMBOLS


def test_common_words_come_first_and_equally_common_ones_by_the_alphabet():
    assert Vocabulary.build(SENTENCES).words[4:] == ("a", "b", "c", "d")
    assert Vocabulary.build(reversed(SENTENCES)).words[4:] == ("a", "b", "c", "d")


def test_rare_words_and_those_beyond_the_size_are_left_out():
    assert Vocabulary.build(SENTENCES, min_count=2).words[4:] == ("a", "b")
    assert Vocabulary.build(SENTENCES, max_size=5).words[4:] == ("a",)


def test_a_word_that_is_not_there_is_unknown():
    words = Vocabulary.build(SENTENCES)
    assert words.encode(["b", "zebra"]) == [5, UNK]
    assert "b" in words and "zebra" not in words


def test_words_stop_at_the_end_symbol_and_padding_says_nothing():
    words = Vocabulary.build(SENTENCES)
    assert words.decode([BOS, 4, PAD, 5, EOS, 6]) == ["a", "b"]


def test_a_text_with_a_symbols_name_in_it_makes_no_second_entry():
    assert Vocabulary.build([["</s>", "a", "<unk>"]]).words == (*SYMBOLS, "a")


@pytest.mark.parametrize("words", [(), ("a", "b"), (*SYMBOLS, "a", "a")])
def test_a_list_that_is_no_vocabulary_is_refused(words):
    with pytest.raises(TaskError, match="this is no vocabulary"):
        Vocabulary(words)
