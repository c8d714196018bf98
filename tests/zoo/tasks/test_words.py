import pytest

from saccade.zoo.tasks.text import JOINT, join_words, split_words


@pytest.mark.parametrize(
    "text",
    [
        "",
        "word",
        "A dog (small), isn't it?",
        'He said: "No!" -- and left...',
        "3.5 million U.S. dollars; 1,000,000.",
        "l'homme aujourd\u2019hui, c'est-à-dire !",
        "Zwei junge weiße Männer sind im Freien.",
        "((nested)) a_b _ x__",
        "日本語 text. C++ & C#",
    ],
)
def test_joining_words_gives_the_text_back(text):
    assert join_words(split_words(text)) == text


def test_a_mark_is_told_from_the_word_it_touches():
    assert split_words("dogs. dogs") == ["dogs", f"{JOINT}.", "dogs"]
    assert split_words("(dogs") == [f"({JOINT}", "dogs"]


def test_spaces_count_as_one_and_the_mark_itself_as_a_space():
    assert join_words(split_words(f"a \t b{JOINT}c\n")) == "a b c"


def test_real_sentences_survive(data_with):
    from saccade.zoo.tasks.multi30k import read_multi30k

    splits = read_multi30k(data_with("multi30k"), source="fr", target="de")
    for text in (*splits.valid.source, *splits.valid.target):
        assert join_words(split_words(text)) == " ".join(text.split())
