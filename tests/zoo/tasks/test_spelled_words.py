import random

import pytest
import torch

from saccade.zoo.tasks.rare_words import (
    END_OF_WORD,
    FIRST_WORD,
    UNSEEN,
    SpelledWords,
    compress,
    find_spellings,
    is_spelling,
)
from saccade.zoo.tasks.tokenizers import tokenizer_from_json
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, UNK

TEXTS = ["A dog runs.", "A cat, a small one, sleeps.", "A dog sleeps."]


@pytest.fixture
def tokenizer():
    return SpelledWords.build(TEXTS, n_words=3)


@pytest.mark.parametrize("text", [*TEXTS, "A tall cap (rare)!", "Dog"])
def test_every_text_of_known_letters_comes_back(tokenizer, text):
    known = SpelledWords.build([*TEXTS, "tall cap (rare)! Dog"], n_words=3)
    assert known.decode([BOS, *known.encode(text), EOS, 99]) == text


def test_a_letter_that_was_never_seen_is_marked(tokenizer):
    ids = tokenizer.encode("dog Ω")
    assert ids[-3:] == [UNK, UNSEEN, END_OF_WORD]
    assert tokenizer.decode(ids) == "dog \N{REPLACEMENT CHARACTER}"


def test_words_begin_at_a_fixed_id_whatever_the_letters(tokenizer):
    assert len(tokenizer) == FIRST_WORD + 3
    assert tokenizer.labels([FIRST_WORD, UNK, END_OF_WORD]) == ["A", "<unk>", "</w>"]
    assert all(each < FIRST_WORD for each in tokenizer.encode("zzz"))


def test_ids_that_no_text_would_give_are_read_as_well_as_can_be(tokenizer):
    a, dog = tokenizer.encode("zag")[2], tokenizer.encode("dog")
    assert tokenizer.decode([a, a, END_OF_WORD, *dog]) == "aa dog"
    assert tokenizer.decode([*dog, UNK, END_OF_WORD, UNK, a]) == "dog a"
    assert tokenizer.decode([UNK, a, *dog, a]) == "a dog a"
    assert tokenizer.decode([FIRST_WORD - 1, *dog]) == "dog"


def test_it_is_made_again_from_json(tokenizer):
    again = tokenizer_from_json(tokenizer.to_json())
    assert again == tokenizer and again.encode("A rat.") == tokenizer.encode("A rat.")


def spellings_by_loops(rows):
    found = []
    for row, ids in enumerate(rows):
        for place, each in enumerate(ids):
            if each != UNK:
                continue
            end = place + 1
            while end < len(ids) and UNSEEN <= ids[end] < FIRST_WORD:
                end += 1
            found.append((row, place, ids[place:end]))
    return found


def test_spellings_are_found_as_by_loops():
    rng = random.Random(0)
    for _ in range(20):
        rows = [
            [
                token
                for _ in range(rng.randint(1, 5))
                for token in rng.choice(
                    [[FIRST_WORD + 1], [UNK, 7, 9, END_OF_WORD], [UNK, UNSEEN, END_OF_WORD]]
                )
            ]
            for _ in range(3)
        ]
        width = max(map(len, rows))
        ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
        found = find_spellings(ids)
        expected = spellings_by_loops(ids.tolist())
        assert found.row.tolist() == [row for row, _, _ in expected]
        assert found.place.tolist() == [place for _, place, _ in expected]
        letters = [row[mask].tolist() for row, mask in zip(found.letters, found.mask, strict=True)]
        assert letters == [each for _, _, each in expected]
        assert int(found.mask.sum()) == int(is_spelling(ids).sum())


def test_compressing_keeps_the_order_and_pads_at_the_end():
    torch.manual_seed(0)
    keep = torch.rand(5, 13) < 0.4
    place, mask = compress(keep)
    for row in range(5):
        assert place[row][mask[row]].tolist() == keep[row].nonzero()[:, 0].tolist()
    assert mask.shape[1] == keep.sum(1).max()
