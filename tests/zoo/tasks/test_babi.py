"""bAbI: what is read is what the files say, and what is no story is refused in one line."""

import io
import re
import tarfile

import pytest

from saccade.errors import TaskError
from saccade.zoo.tasks.babi import parse_stories, read_babi

TEXT = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Mary took the milk, and left.
5 What is Mary carrying?\tmilk,football\t4 1 4
1 John is a frog.
2 What is John?\tfrog\t1
"""


def test_each_question_comes_with_the_facts_before_it_and_only_those_of_its_story():
    first, second = parse_stories(TEXT, task=7)
    assert [len(question.facts) for question in first] == [2, 3]
    assert first[1].words == ("what", "is", "mary", "carrying")
    assert first[1].facts[2] == ("mary", "took", "the", "milk", "and", "left")
    assert first[1].answer == "milk,football" and first[1].task == 7
    assert second[0].facts == (("john", "is", "a", "frog"),)


def test_support_counts_facts_and_not_lines_each_once_in_the_order_of_the_argument():
    first, second = parse_stories(TEXT)
    assert first[0].support == (0,)
    assert first[1].support == (2, 0)
    assert second[0].support == (0,)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 Mary went home.\n", "holds no question"),
        ("", "holds no question"),
        ("Mary went home.\n", "line 1 of the text is no line of a story"),
        ("1 Mary went home.\n2\n", "line 2 of the text is no line of a story"),
        ("1 Mary went home.\n2 Where is Mary?\thome\t3\n", "names the fact 3"),
        ("1 Where is Mary?\thome\t1\n", "names the fact 1"),
        ("1 Mary went home.\n2 Where is Mary?\t\t1\n", "has no answer"),
    ],
)
def test_what_is_no_story_is_refused_in_one_line(text, told):
    with pytest.raises(TaskError, match=told) as refused:
        parse_stories(text)
    assert refused.value.hint and "\n" not in str(refused.value)


def pack(folder, **texts):
    with tarfile.open(folder / "tasks_1-20_v1-2.tar.gz", "w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"tasks_1-20_v1-2/en/{name}.txt")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))


def test_the_published_archive_is_read_and_the_last_tenth_of_its_stories_is_held_back(tmp_path):
    pack(tmp_path, qa1_single_train=TEXT * 10, qa1_single_test=TEXT, qa11_x_train=TEXT)
    splits = read_babi("1k", tmp_path, tasks=(1,))
    assert [len(part) for part in splits] == [27, 3, 3]
    assert {question.task for part in splits for question in part} == {1}


def test_a_task_or_a_size_that_is_not_there_is_refused(tmp_path):
    pack(tmp_path, qa1_single_train=TEXT, qa1_single_test=TEXT)
    with pytest.raises(TaskError, match="no train part of task 2"):
        read_babi("1k", tmp_path, tasks=(1, 2))
    with pytest.raises(TaskError, match="holds no file named like"):
        read_babi("10k", tmp_path)


def test_a_broken_archive_is_refused_in_one_line(tmp_path):
    (tmp_path / "babi-tasks-v1-2.tar.gz").write_bytes(b"no archive")
    with pytest.raises(TaskError, match="is a broken archive") as refused:
        read_babi("1k", tmp_path)
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def splits(data_with):
    return read_babi("1k", data_with("babi"), tasks=(1, 2, 3))


def test_the_real_archive_is_read_whole(splits, data_with):
    assert len(splits.train) + len(splits.valid) == len(splits.test) == 3000
    assert 0.09 < len(splits.valid) / 3000 < 0.11
    with tarfile.open(data_with("babi") / "babi-tasks-v1-2.tar.gz") as archive:
        member = archive.extractfile("en/qa3_three-supporting-facts_test.txt")
        lines = member.read().decode().splitlines()
    told = [re.sub(r"^\d+ ", "", line) for line in lines]
    third = [question for question in splits.test if question.task == 3]
    assert len(third) == sum("\t" in line for line in lines) == 1000
    for question, line in zip(third, (line for line in told if "\t" in line), strict=True):
        text, answer, support = line.split("\t")
        assert question.answer == answer and len(question.support) == len(support.split())
        assert " ".join(question.words) == text.strip().rstrip("?").lower()


def test_support_points_at_facts_that_name_what_is_asked_for(splits):
    for question in splits.test[:2000]:  # tasks 1 and 2
        person = question.words[-1]
        assert person in question.facts[question.support[0]]
        assert question.answer in question.facts[question.support[-1]]
