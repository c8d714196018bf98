"""Judged by the papers' own examples, and by merges done by hand."""

from collections import Counter
from itertools import pairwise

import pytest

from saccade.errors import UsageError
from saccade.zoo.tasks.subwords import START, Subwords
from saccade.zoo.tasks.vocabulary import SYMBOLS, UNK


def test_gnmts_example_comes_out_piece_by_piece():
    text = "Jet makers feud over seat width with big orders at stake"
    pieces = "_J et _makers _fe ud _over _seat _width _with _big _orders _at _stake"
    tokenizer = Subwords.of_pieces(list(dict.fromkeys(pieces.replace("_", START).split())))
    assert " ".join(tokenizer.labels(tokenizer.encode(text))).replace(START, "_") == pieces
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_wordpiece_is_the_longest_that_fits():
    tokenizer = Subwords.of_pieces([f"{START}a", f"{START}ab", "b", "bc", "c"])
    assert tokenizer.labels(tokenizer.encode("abc abbc a")) == [
        *(f"{START}ab", "c"),
        *(f"{START}ab", "bc"),
        f"{START}a",
    ]


def merges_by_hand(words: Counter, n: int) -> list[str]:
    """Sennrich's algorithm in plain loops: join the commonest neighbours, ``n`` times."""
    spelled = {tuple(START + word): count for word, count in words.items()}
    learnt = []
    for _ in range(n):
        pairs = Counter()
        for pieces, count in spelled.items():
            for pair in pairwise(pieces):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: pairs[pair])
        assert list(pairs.values()).count(pairs[best]) == 1, "a tie would make this test a gamble"
        learnt.append("".join(best))
        joined = {}
        for pieces, count in spelled.items():
            made, k = [], 0
            while k < len(pieces):
                hit = pieces[k : k + 2] == best
                made.append("".join(best) if hit else pieces[k])
                k += 2 if hit else 1
            joined[tuple(made)] = count
        spelled = joined
    return learnt


def test_byte_pairs_are_merged_in_the_order_of_how_common_they_are():
    words = Counter({"abab": 7, "abc": 5, "cab": 3, "b": 2})
    texts = [word for word, count in words.items() for _ in range(count)]
    alphabet = len({*"abc", START})
    tokenizer = Subwords.train(texts, size=len(SYMBOLS) + alphabet + 4)
    assert tokenizer.labels(range(len(tokenizer)))[-4:] == merges_by_hand(words, 4)


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_training_twice_gives_the_same_pieces(kind):
    texts = ["the quick brown fox", "jumps over the lazy dog", "the dog"] * 3
    first, second = (Subwords.train(texts, size=60, kind=kind) for _ in range(2))
    assert first.to_json() == second.to_json()
    assert len(first) <= 60


def test_spaces_count_as_one_and_accents_are_composed():
    tokenizer = Subwords.train(["café noir"], size=30)
    assert tokenizer.decode(tokenizer.encode("  cafe\u0301 \t noir\n")) == "café noir"


def test_an_unknown_character_is_one_unknown_piece_of_byte_pairs():
    tokenizer = Subwords.train(["low lower"], size=20)
    assert tokenizer.encode("loЖ").count(UNK) == 1


def test_real_sentences_survive(data_with):
    from saccade.zoo.tasks.multi30k import read_multi30k

    texts = read_multi30k(data_with("multi30k")).valid.source
    tokenizer = Subwords.train(texts, size=1000)
    assert len(tokenizer) == 1000
    assert all(tokenizer.decode(tokenizer.encode(text)) == " ".join(text.split()) for text in texts)


def test_too_few_pieces_and_unknown_kinds_are_refused():
    with pytest.raises(UsageError, match="5 pieces are too few: the characters alone are 9"):
        Subwords.train(["abcd"], size=5)
    with pytest.raises(UsageError, match="no subwords of kind 'unigram'"):
        Subwords.train(["abcd"], size=5, kind="unigram")
