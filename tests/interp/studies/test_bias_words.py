"""Lists of words, pairs of prompts, and the tokens that words are written with."""

import pytest

from saccade.errors import UsageError
from saccade.interp.studies.bias.bias_words import (
    WordTokens,
    find_suite,
    find_words,
    refuse_shared,
    split_pairs,
    suite_names,
    tokens_of,
    word_lists,
)


@pytest.mark.parametrize("name", suite_names())
def test_a_suite_has_words_against_each_other_and_pairs_of_prompts(name):
    suite = find_suite(name)
    assert len(suite.words) >= 2 and not set(suite.words) & set(suite.against)
    pairs = split_pairs(suite.prompts)
    assert pairs.second is not None and len(set(pairs.first)) >= 20
    assert "{" not in " ".join([*pairs.first, *pairs.second])


def test_words_come_from_a_list_a_file_or_between_commas(tmp_path):
    (path := tmp_path / "words.txt").write_text("# mine\nred\n\nblue # a colour\n")
    assert find_words(str(path)) == ["red", "blue"]
    assert find_words("red, blue,") == ["red", "blue"]
    assert find_words("nationalities") == list(word_lists()["nationalities"])


def test_tokens_of_a_word_are_what_the_tokenizer_writes_behind_a_space(stories):
    found = tokens_of(stories, ["girl", "park", "hippopotamus"])
    for word, ids in zip(found.words, found.ids, strict=True):
        assert stories.tokenizer.decode(stories.encode("the")[0].tolist() + list(ids)).endswith(
            f"the {word}"
        )
    assert "hippopotamus" in found.in_pieces


def test_what_is_no_list_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="'occupation' is no list of words") as error:
        find_words("occupation")
    assert "did you mean 'occupations'?" in error.value.hint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["girl"], "at least 2 words, got 1: girl"),
        ([], "at least 2 words, got 0: none"),
        (["girl", "boy", "girl"], "'girl' is listed twice"),
    ],
)
def test_too_few_words_and_doubles_are_refused(stories, words, message):
    with pytest.raises(UsageError, match=message):
        tokens_of(stories, words)


def test_a_word_in_both_lists_is_refused(stories):
    with pytest.raises(UsageError, match="'girl' is in both lists"):
        refuse_shared(tokens_of(stories, ["girl", "mom"]), tokens_of(stories, ["boy", "girl"]))


def test_a_word_that_another_begins_counts_once_and_is_refused_across_lists(stories):
    begun = tokens_of(stories, ["cat", "dog"]).ids[0]
    words = WordTokens(("cat", "cattle", "dog"), (begun, (*begun, 7, 8), (9,)))
    assert words.counted == (True, False, True)
    with pytest.raises(UsageError, match="the tokens of 'cattle' begin with those of 'cat'"):
        refuse_shared(WordTokens(("cat",), (begun,)), WordTokens(("cattle",), ((*begun, 7),)))


def test_a_long_line_of_words_is_no_file_name():
    assert len(find_words(",".join(f"word{n}" for n in range(300)))) == 300


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (path := tmp_path / "words.bin").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UsageError, match="cannot read words from"):
        find_words(str(path))


def test_prompts_without_a_choice_are_no_pairs():
    assert split_pairs(["One day", " ", "Lily saw"]) == (("One day", "Lily saw"), None)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "there are no prompts"),
        ([" ", ""], "there are no prompts"),
        (["The {cat|dog}", "Lily saw"], "but this one is not: 'Lily saw'"),
        (["The {cat|cat} ran"], "are the same: 'The cat ran'"),
    ],
)
def test_prompts_that_cannot_be_compared_are_refused(lines, message):
    with pytest.raises(UsageError, match=message):
        split_pairs(lines)


def test_an_unknown_suite_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="no suite 'pronoun'") as error:
        find_suite("pronoun")
    assert "did you mean 'pronouns'?" in error.value.hint


@pytest.mark.parametrize(
    "line",
    [
        "The {he|she said that",
        "The he|she} said that",
        "The {a|b|c} said that",
        "The {he|she} said to {him|her that",
        "The {a|{b|c}} said that",
    ],
)
def test_a_broken_choice_is_refused_not_read_as_words(line):
    with pytest.raises(UsageError, match=r"expected a choice such as \{one\|other\}, found a bro"):
        split_pairs([line, "The {man|woman} was"])
    with pytest.raises(UsageError, match="found a broken one"):
        split_pairs([line])


def test_braces_and_bars_that_make_no_choice_are_words():
    lines = ["if (a || b) { return", "the set {1, 2} is", "a | b"]
    assert split_pairs(lines).first == tuple(lines)


def test_a_name_longer_than_any_file_is_no_list():
    with pytest.raises(UsageError, match="is no list of words"):
        find_words("x" * 5000)
