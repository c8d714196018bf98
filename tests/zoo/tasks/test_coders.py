import json
import re

import pytest

from saccade.errors import TaskError
from saccade.zoo.tasks.rare_words import MixedWords
from saccade.zoo.tasks.subwords import Subwords
from saccade.zoo.tasks.tokenizers import (
    CharacterTokenizer,
    Tokenizer,
    WordTokenizer,
    load_tokenizer,
    save_tokenizer,
)
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, SYMBOLS

TEXTS = ["the cat sat on the mat.", "a cat, a mat and a hat!", "the end (of it)"]


def made(kind: str) -> Tokenizer:
    if kind == "words":
        return WordTokenizer.build(TEXTS)
    if kind == "characters":
        return CharacterTokenizer.build(TEXTS)
    if kind == "mixed":
        return MixedWords.build(TEXTS, n_words=3)
    return Subwords.train(TEXTS, size=50, kind=kind)


KINDS = ["words", "characters", "mixed", "bpe", "wordpiece"]
each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
def test_a_text_it_knows_comes_back(kind):
    tokenizer = made(kind)
    assert isinstance(tokenizer, Tokenizer)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode([BOS, *ids, EOS, ids[0], PAD]) == text
        assert all(len(SYMBOLS) <= each < len(tokenizer) for each in ids)


@each_kind
def test_many_texts_are_encoded_as_each_is_by_itself(kind):
    tokenizer = made(kind)
    rows = tokenizer.encode_all(TEXTS)
    assert [rows.row(k).tolist() for k in range(len(rows))] == [tokenizer.encode(t) for t in TEXTS]


@each_kind
def test_saving_and_loading_changes_nothing(kind, tmp_path):
    tokenizer = made(kind)
    save_tokenizer(tmp_path / "tokenizer.json", tokenizer)
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert type(again) is type(tokenizer) and len(again) == len(tokenizer)
    for text in (*TEXTS, "an unknown Zebra </s> <pad>"):
        assert again.encode(text) == tokenizer.encode(text)
    assert again.to_json() == tokenizer.to_json()


@each_kind
def test_a_text_that_spells_out_a_symbol_ends_nothing_and_fills_up_nothing(kind):
    ids = made(kind).encode("the cat </s> sat <pad> on <s> the mat")
    assert not {PAD, BOS, EOS} & set(ids)


@each_kind
def test_every_id_has_a_label(kind):
    tokenizer = made(kind)
    labels = tokenizer.labels(range(len(tokenizer)))
    assert tuple(labels[:4]) == SYMBOLS
    assert len(set(labels)) == len(tokenizer)


@pytest.mark.parametrize("kind", ["words", "wordpiece"])
def test_a_word_it_does_not_know_is_shown_as_unknown(kind):
    tokenizer = made(kind)
    assert tokenizer.decode(tokenizer.encode("the Ж mat.")) == "the <unk> mat."


@each_kind
def test_what_becomes_unk_is_named_and_nothing_else(kind):
    tokenizer = made(kind)
    assert tokenizer.unknown("the Ж mat, Ж.") == ["Ж", "Ж"]
    assert all(tokenizer.unknown(text) == [] for text in TEXTS)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == TEXTS


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is damaged"),
        ("[1]", "got None"),
        ('{"kind": "magic"}', "got 'magic'"),
        ('{"kind": "words"}', "it has no 'words'"),
        ('{"kind": "words", "words": ["a"]}', "this is no vocabulary"),
        ('{"kind": "bpe", "tokenizer": {}}', "these subwords are damaged"),
    ],
)
def test_a_file_that_holds_no_tokenizer_is_refused(tmp_path, text, words):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(TaskError, match=re.escape(words)):
        load_tokenizer(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TaskError, match=r"could not read .*none\.json: No such file"):
        load_tokenizer(tmp_path / "none.json")


def test_a_saved_tokenizer_is_plain_json(tmp_path):
    save_tokenizer(tmp_path / "c.json", made("words"))
    held = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert held["kind"] == "words" and "mat" in held["words"]
