"""Questions out of raw books: 20 sentences, a gap, ten candidates, no name left."""

import gzip
from collections import Counter

import pytest

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks import cloze as book_cloze
from saccade.zoo.tasks.cloze import (
    GAP_WORD,
    LABEL_WORD,
    book_questions,
    find_names,
    question_of_text,
    read_book_cloze,
    split_plain,
)

NAMES = [f"{first}{last}" for first in ("Bel", "Dor", "Mir", "Tam") for last in ("a", "e", "o")]


def make_book(n=60):
    """A book of one sentence a paragraph, each with two of twelve names in its middle."""
    chosen = [(NAMES[(5 * i) % 12], NAMES[(7 * i + 1) % 12]) for i in range(n)]
    return "\n\n".join(f"On day {i} Mr. {a} saw {b} at home." for i, (a, b) in enumerate(chosen))


def test_a_book_gives_a_question_for_each_name_that_occurred_before():
    text = make_book()
    sentences = [f"on day {i} mr . X saw Y at home .".split() for i in range(60)]
    questions = book_questions(text)
    words = [split_plain(line) for line in text.split("\n\n")]
    asked = 0
    for place in range(20, 60):
        before = {word for each in words[place - 20 : place] for word in each if word in NAMES}
        asked += sum(word in before for word in words[place] if word in NAMES)
    assert len(questions) == asked
    for each in questions:
        assert each.question.count(GAP_WORD) == 1 and len(each.candidates) == 10
        assert len(each.document) == 20 * len(sentences[0])
        assert not {*each.document, *each.question} & {*NAMES}
        assert f"{LABEL_WORD}{each.answer}" in each.document
        assert f"{LABEL_WORD}{each.answer}" not in each.question
        assert each.answer in each.candidates


def test_questions_can_be_answered_by_putting_the_names_back():
    text = make_book()
    lowered = " ".join(" ".join(split_plain(line)) for line in text.split("\n\n")).lower()
    for each in book_questions(text):
        place = {f"{LABEL_WORD}{at}": name.lower() for at, name in enumerate(each.names)}
        place[GAP_WORD] = each.names[each.answer].lower()
        whole = " ".join(place.get(word, word) for word in (*each.document, *each.question))
        assert whole in lowered


def test_a_name_is_a_word_with_a_capital_where_nothing_asks_for_one():
    sentences = ["But Emma went with Mr. Knightley.", "Then Emma spoke: 'Well, Knightley, well.'"]
    sentences += ["She liked Emma and Knightley.", "They thought it well done, said Emma."]
    names = find_names([split_plain(each) for each in sentences])
    assert names == {"Emma", "Knightley"}


def test_a_question_whose_answer_stands_twice_in_it_is_left_out():
    text = make_book(30) + "\n\nThen Mr. Bela thanked Bela for coming to see Bela."
    assert len(book_questions(text)) == len(book_questions(make_book(30)))


def test_a_text_of_the_users_is_a_question():
    asked = question_of_text(f"Then Ann met Bob. Ann left. At noon {GAP_WORD} called Bob.")
    assert asked.names == ("Ann", "Bob") and asked.answer is None and asked.candidates == (0, 1)
    assert " ".join(asked.question) == f"at noon {GAP_WORD} called @entity1 ."


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Then Ann met Bob. He left.", "has no question"),
        (f"{GAP_WORD} met Ann.", "has no question"),
        (f"Then Ann met {GAP_WORD}. Then {GAP_WORD} left Ann.", None),
        (f"it rained. then {GAP_WORD} left.", "has no question"),
        (f"It rained. Then {GAP_WORD} left.", "no names"),
        ("", "has no question"),
    ],
)
def test_a_text_without_a_question_is_refused(text, words):
    if words is None:  # a gap that is not in the last sentence is a word like any other
        assert question_of_text(text).names == ("Ann",)
        return
    with pytest.raises(UsageError, match=words) as refused:
        question_of_text(text)
    assert refused.value.hint


def test_books_are_kept_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(book_cloze, "TRAIN_BOOKS", ("austen-emma", "austen-sense"))
    for book in ("austen-emma", "chesterton-thursday", "carroll-alice"):
        (tmp_path / f"{book}.txt.gz").write_bytes(gzip.compress(make_book().encode()))
    splits = read_book_cloze(tmp_path)
    sources = [{each.source for each in part} for part in splits]
    assert sources == [{"austen-emma"}, {"chesterton-thursday"}, {"carroll-alice"}]


def test_a_part_without_a_book_is_refused(tmp_path):
    (tmp_path / "austen-emma.txt").write_text(make_book())
    with pytest.raises(TaskError, match="has none of the books chesterton-thursday"):
        read_book_cloze(tmp_path)


def test_no_book_is_in_two_parts():
    parts = (book_cloze.TRAIN_BOOKS, book_cloze.VALID_BOOKS, book_cloze.TEST_BOOKS)
    books = [book for part in parts for book in part]
    assert len(books) == len(set(books)) == 10


def test_real_books_have_hundreds_of_questions_in_the_form_of_the_test(data_with):
    questions = book_cloze.read_books("valid", data_with("gutenberg"))
    assert len(questions) > 900
    for each in questions:
        assert len(each.candidates) == 10 and each.question.count(GAP_WORD) == 1
        assert f"{LABEL_WORD}{each.answer}" in each.document
    names = Counter(each.names[each.answer] for each in questions)
    assert {"Syme", "Gregory", "Bull"} <= {name for name, _ in names.most_common(6)}
