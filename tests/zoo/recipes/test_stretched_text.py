import itertools

import pytest

from saccade.errors import UsageError
from saccade.zoo.recipes.online_alignment import SILENCE, split_vocabulary, stretch

WORDS = ["hello", "off", "aa", "otter"]


def heard(word, *, seed=0, noise=0.0, epoch=0):
    return stretch(word, longest_hold=3, noise=noise, seed=seed, epoch=epoch)


def test_a_word_comes_back_when_held_letters_and_silences_are_dropped():
    for word, said in zip(WORDS * 50, heard(WORDS * 50), strict=True):
        letters = [letter for letter, _ in itertools.groupby(said.frames) if letter != SILENCE]
        assert "".join(letters) == word
        held = [len(list(same)) for letter, same in itertools.groupby(said.frames)]
        assert max(held) <= 3


def test_onsets_are_where_each_letter_begins():
    for word, said in zip(WORDS * 50, heard(WORDS * 50), strict=True):
        assert "".join(said.frames[at] for at in said.onsets) == word
        assert all(at == 0 or said.frames[at - 1] != said.frames[at] for at in said.onsets)


def test_every_epoch_says_it_another_way_and_the_same_epoch_the_same_way():
    assert heard(WORDS) == heard(WORDS)
    assert heard(WORDS) != heard(WORDS, epoch=1)
    assert heard(WORDS) != heard(WORDS, seed=1)


def test_noise_changes_about_as_many_frames_as_asked_for_and_no_length():
    clear, noisy = heard(WORDS * 200), heard(WORDS * 200, noise=0.25)
    pairs = [
        (a, b)
        for one, other in zip(clear, noisy, strict=True)
        for a, b in zip(one.frames, other.frames, strict=True)
    ]
    changed = sum(a != b for a, b in pairs) / len(pairs)
    assert 0.2 < changed < 0.27
    assert [one.onsets for one in clear] == [one.onsets for one in noisy]


def test_no_word_is_in_two_parts():
    texts = [" ".join(f"w{a}{b}" for a in "abcdefg" for b in "hijklmn"), "A, man; I'm THE man"]
    found = split_vocabulary(texts)
    together = [*found.train, *found.valid, *found.test]
    assert len(together) == len(set(together)) == 49 + 2 and "man" in together
    assert len(found.valid) == len(found.test) == 5


def test_too_few_words_are_refused():
    with pytest.raises(UsageError, match="2 different words are too few"):
        split_vocabulary(["the man"])
