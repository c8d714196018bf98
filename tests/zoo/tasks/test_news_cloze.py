"""The question files of CNN and the Daily Mail."""

import pytest

from saccade.errors import TaskError
from saccade.zoo.tasks.cloze import GAP_WORD, read_news_cloze, read_question_file

FILE = """\
http://example.org/news/1

( @entity9 ) @entity4 , who met @entity12 in @entity9 , said @entity4 was tired .

@placeholder met @entity4 before

@entity12

@entity4:Ann Smith
@entity9:Paris: the city
@entity12:Bob
"""


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        path = tmp_path / "test" / f"{number}abc.question"
        path.parent.mkdir(exist_ok=True)
        path.write_text(FILE, encoding="utf-8")
    return tmp_path


def test_a_file_is_a_question_with_labels_in_order(folder):
    asked = read_question_file(folder / "test" / "0abc.question")
    assert asked.document[:6] == ("(", "@entity0", ")", "@entity1", ",", "who")
    assert asked.question == (GAP_WORD, "met", "@entity1", "before")
    assert asked.answer == 2 and asked.candidates == (0, 1, 2)
    assert asked.names == ("Paris: the city", "Ann Smith", "Bob")
    assert asked.source == "0abc"


def test_a_folder_has_all_of_its_questions(folder):
    assert [each.source for each in read_news_cloze(folder, "test")] == ["0abc", "1abc", "2abc"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (FILE, "@entity1 left .", "expected five parts"),
        ("@placeholder met", "nobody met", "0 gaps"),
        ("\n\n@entity12\n", "\n\nBob\n", "its answer is 'Bob'"),
    ],
)
def test_a_broken_file_is_refused(old, new, words, tmp_path):
    path = tmp_path / "x.question"
    path.write_text(FILE.replace(old, new), encoding="utf-8")
    with pytest.raises(TaskError, match=words) as refused:
        read_question_file(path)
    assert "an address, the article" in refused.value.hint


def test_a_folder_without_questions_and_an_unknown_part_are_refused(tmp_path):
    with pytest.raises(TaskError, match=r"has no \.question files"):
        read_news_cloze(tmp_path)
    with pytest.raises(TaskError, match="no part named 'dev'"):
        read_news_cloze(tmp_path, "dev")
