"""The readers on real data, and on small files made here."""

import gzip
import zipfile

import pytest

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.books import read_tinyshakespeare
from saccade.zoo.tasks.multi30k import read_fra_eng, read_multi30k


def test_multi30k_has_the_parts_it_is_known_for(data_with):
    splits = read_multi30k(data_with("multi30k"))
    assert [len(part.source) for part in splits] == [29_000, 1_014, 1_000]
    assert splits.train.source[0].startswith("Zwei junge weiße Männer")
    assert splits.train.target[0].startswith("Two young, White males")


def test_multi30k_can_be_read_the_other_way_round_from_plain_files(tmp_path):
    for part in ("train", "val", "test_2016_flickr"):
        (tmp_path / f"{part}.en").write_text(f"a {part}\n")
        (tmp_path / f"{part}.fr.gz").write_bytes(gzip.compress(f"un {part}\n".encode()))
    splits = read_multi30k(tmp_path, source="en", target="fr")
    assert splits.valid == (["a val"], ["un val"])


def test_a_language_of_multi30k_that_is_missing_is_named(tmp_path):
    (tmp_path / "train.de").write_text("ein Hund\n")
    with pytest.raises(TaskError, match=r"could not read .*train\.en: no such file"):
        read_multi30k(tmp_path)


@pytest.mark.parametrize(
    ("source", "target", "words"), [("cs", "en", "no language 'cs'"), ("en", "en", "both 'en'")]
)
def test_languages_that_make_no_pair_are_refused(source, target, words):
    with pytest.raises(UsageError, match=words):
        read_multi30k(source=source, target=target)


@pytest.fixture(scope="module")
def fra_eng(data_with):
    return read_fra_eng(data_with("fra-eng"))


def test_fra_eng_is_split_without_an_english_sentence_in_two_parts(fra_eng):
    assert sum(len(part.source) for part in fra_eng) == 167_130
    train, valid, test = (set(part.source) for part in fra_eng)
    assert not (train & valid or train & test or valid & test)
    assert 1_400 < len(fra_eng.valid.source) < 1_900
    assert 1_400 < len(fra_eng.test.source) < 1_900


def test_fra_eng_can_be_kept_short(data_with, fra_eng):
    short = read_fra_eng(data_with("fra-eng"), max_words=5)
    assert max(len(text.split()) for text in (*short.test.source, *short.test.target)) == 5
    kept = [text for text in short.test.source if text in set(fra_eng.test.source)]
    assert kept == short.test.source


def zipped(folder, text):
    with zipfile.ZipFile(folder / "fra-eng.zip", "w") as archive:
        archive.writestr("fra.txt", text)
        archive.writestr("__MACOSX/._fra.txt", b"\0\1")
    return folder


def test_newer_files_of_fra_eng_name_the_authors_in_a_third_column(tmp_path):
    parts = read_fra_eng(zipped(tmp_path, "Go.\tVa !\tCC-BY 2.0 someone\nHi.\tSalut !\tx\n"))
    both = [pair for part in parts for pair in zip(part.source, part.target, strict=True)]
    assert sorted(both) == [("Go.", "Va !"), ("Hi.", "Salut !")]


@pytest.mark.parametrize("text", ["Go.\tVa !\nHi.\n", "Go.\tVa !\nHi.\t \n"])
def test_a_line_of_fra_eng_that_is_no_pair_is_refused(tmp_path, text):
    with pytest.raises(TaskError, match=r"fra\.txt in .* line 2 is no pair"):
        read_fra_eng(zipped(tmp_path, text))


def test_the_last_tenth_of_the_plays_is_the_test(data_with):
    splits = read_tinyshakespeare(data_with("tinyshakespeare"))
    assert (len(splits.train), len(splits.valid)) == (1_003_854, 0)
    assert "".join(splits).startswith("First Citizen:\nBefore we proceed")
    assert len("".join(splits)) == 1_115_394
    assert splits.test.endswith("Whiles thou art waking.\n")


def test_the_plays_can_be_cut_in_three(data_with):
    data = data_with("tinyshakespeare")
    splits = read_tinyshakespeare(data, valid=0.05, test=0.05)
    assert [round(len(part) / 1_115_394, 5) for part in splits] == [0.9, 0.05, 0.05]
    assert splits.train == read_tinyshakespeare(data).train
