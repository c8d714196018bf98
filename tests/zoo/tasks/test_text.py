import pytest
import torch

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.text import TextSplits, make_corpus, split_text, stream_batches
from saccade.zoo.tasks.vocabulary import EOS, UNK


@pytest.mark.parametrize(
    ("n", "batch", "window"), [(97, 7, 5), (31, 2, 40), (12, 11, 1), (50, 7, 7)]
)
def test_every_token_but_the_first_is_a_target_once_and_in_order(n, batch, window):
    ids = torch.arange(4, 4 + n)
    batches = list(stream_batches(ids, batch=batch, window=window))
    rows = [
        torch.cat([each.targets[row][each.mask[row]] for each in batches]) for row in range(batch)
    ]
    assert torch.cat(rows).tolist() == ids[1:].tolist()
    assert [each.is_first for each in batches] == [True] + [False] * (len(batches) - 1)


def test_a_target_is_what_follows_its_input_and_windows_go_on_where_the_last_stopped():
    ids = torch.randperm(101)
    follows = dict(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
    last = None
    for each in stream_batches(ids, batch=3, window=7):
        for token, target in zip(each.inputs[each.mask], each.targets[each.mask], strict=True):
            assert follows[int(token)] == int(target)
        if last is not None:
            assert torch.equal(each.inputs[:2, 0], last.targets[:2, -1])
        last = each


def test_a_text_too_short_for_its_streams_is_refused():
    with pytest.raises(TaskError, match="a text of 5 tokens is too short for 7 streams"):
        next(stream_batches(torch.arange(5), batch=7, window=3))


@pytest.mark.parametrize(("valid", "test"), [(0.5, 0.5), (-0.1, 0.1), (0.0, 1.0)])
def test_shares_that_leave_nothing_to_learn_from_are_refused(valid, test):
    with pytest.raises(UsageError, match="leave nothing for training"):
        split_text("abc", valid=valid, test=test)


def test_parts_of_a_text_make_up_the_whole():
    text = "".join(map(chr, range(300, 400)))
    assert "".join(split_text(text, valid=0.07, test=0.11)) == text


def test_characters_are_encoded_as_they_stand():
    corpus = make_corpus(TextSplits("ab\nab", "b", "xa"), unit="character")
    words = corpus.vocabulary.words
    assert "".join(words[k] for k in corpus.train) == "ab\nab"
    assert corpus.test.tolist() == [UNK, corpus.vocabulary.ids["a"]]
    assert len(words) == 4 + 3


def test_words_are_encoded_with_the_end_of_each_line():
    corpus = make_corpus(TextSplits("a b\na c\n", "", "b d"), unit="word", min_count=2)
    a = corpus.vocabulary.ids["a"]
    assert corpus.train.tolist() == [a, UNK, EOS, a, UNK, EOS]
    assert corpus.valid.tolist() == []
    assert corpus.test.tolist() == [UNK, UNK, EOS]


def test_a_word_that_spells_a_symbol_is_unknown():
    corpus = make_corpus(TextSplits("a </s> <pad> <unk> a", "", ""), unit="word")
    a = corpus.vocabulary.ids["a"]
    assert corpus.train.tolist() == [a, UNK, UNK, UNK, a, EOS]


def test_a_training_text_that_is_empty_is_refused():
    with pytest.raises(TaskError, match="the training text is empty"):
        make_corpus(TextSplits("", "a", "b"), unit="character")
