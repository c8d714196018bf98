"""Books into running words."""

import gzip

import pytest

from saccade.errors import TaskError
from saccade.zoo.tasks.books import read_gutenberg
from saccade.zoo.tasks.text import join_words


@pytest.fixture
def books(tmp_path):
    for author, name in (("carroll-alice", "Alice"), ("blake-poems", "Tyger")):
        paragraphs = "\n\n".join(f"{name}, number\n{n}; caf\xe9." for n in range(100))
        (tmp_path / f"{author}.txt.gz").write_bytes(gzip.compress(paragraphs.encode("latin-1")))
    return tmp_path


def test_each_book_is_cut_between_paragraphs_and_nothing_is_lost(books):
    splits = read_gutenberg(books, valid=0.1, test=0.2)
    for part in splits:
        assert part.count("Alice") == part.count("Tyger")  # each part has some of each book
    numbers = {
        name: [
            [
                int(join_words(line.split()).split("number ")[1].split(";")[0])
                for line in part.splitlines()
                if name in line
            ]
            for part in splits
        ]
        for name in ("Alice", "Tyger")
    }
    for parts in numbers.values():
        assert [n for part in parts for n in part] == list(range(100))
        assert [abs(len(part) - n) <= 2 for part, n in zip(parts, (70, 10, 20), strict=True)]


def test_a_paragraph_is_a_line_of_words(books):
    first = read_gutenberg(books).train.splitlines()[0]
    assert join_words(first.split()) in ("Alice, number 0; caf\xe9.", "Tyger, number 0; caf\xe9.")


def test_an_empty_book_is_refused(tmp_path):
    (tmp_path / "carroll-alice.txt").write_text("\n \n")
    with pytest.raises(TaskError, match="holds no text"):
        read_gutenberg(tmp_path)


def test_the_real_books_have_a_million_words(data_with):
    splits = read_gutenberg(data_with("gutenberg"))
    train, valid, test = (len(part.split()) for part in splits)
    assert train > 1_200_000
    assert 0.8 < test / (2 * valid) < 1.2
