"""Cloze questions as ids: labels are dealt out, and nothing else about a question changes."""

import pytest
import torch

from saccade.errors import TaskError
from saccade.zoo.tasks.cloze import (
    FIRST_LABEL,
    GAP,
    GAP_WORD,
    Cloze,
    cloze_vocabulary,
    deal_labels,
    make_question,
)
from saccade.zoo.tasks.vocabulary import cut_by_tokens

N_LABELS = 5


def questions(n=13):
    """Documents of unequal length in which C0, C1 and C2 occur."""
    return [
        make_question(
            ["C1", "saw", *(["the"] * (number % 7)), "C0", "and", "C2", "."],
            ["then", "C0", "met", GAP_WORD, "."],
            names=["C0", "C1", "C2"],
            answer=f"C{1 + number % 2}",
        )
        for number in range(n)
    ]


@pytest.fixture
def cloze():
    asked = questions()
    vocabulary = cloze_vocabulary(asked, n_labels=N_LABELS, max_size=100)
    return Cloze.encode(asked, vocabulary, n_labels=N_LABELS)


def test_names_become_labels_in_the_order_in_which_they_occur():
    asked = questions()[0]
    assert asked.document == ("@entity0", "saw", "@entity1", "and", "@entity2", ".")
    assert asked.question == ("then", "@entity1", "met", GAP_WORD, ".")
    assert (asked.names, asked.answer, asked.candidates) == (("C1", "C0", "C2"), 0, (0, 1, 2))


def test_an_answer_and_candidates_that_the_document_lacks_have_labels_too():
    asked = make_question(["A", "ran"], [GAP_WORD], names="ABC", answer="B", candidates=["C"])
    assert asked.names == ("A", "C", "B") and asked.candidates == (1, 2) and asked.answer == 2


def test_a_vocabulary_has_symbols_gap_and_labels_first_and_words_by_frequency():
    vocabulary = cloze_vocabulary(questions(), n_labels=2, max_size=9)
    assert vocabulary.words[GAP] == GAP_WORD
    assert vocabulary.words[FIRST_LABEL:7] == ("@entity0", "@entity1")
    assert len(vocabulary) == 9 and "the" in vocabulary.words[7:]


def test_dealing_labels_renames_and_keeps_all_else(cloze):
    batch = cloze.batch(torch.arange(len(cloze)))
    chance = torch.Generator().manual_seed(3)
    dealt = torch.rand(len(cloze), N_LABELS, generator=chance).argsort(1)
    new = deal_labels(batch, dealt)
    for row in range(len(cloze)):
        place = {FIRST_LABEL + old: FIRST_LABEL + int(dealt[row, old]) for old in range(N_LABELS)}
        for before, after in ((batch.document, new.document), (batch.question, new.question)):
            assert [place.get(each, each) for each in before[row].tolist()] == after[row].tolist()
        assert new.answers[row] == dealt[row, batch.answers[row]]
        for old in range(N_LABELS):
            assert new.candidates[row, dealt[row, old]] == batch.candidates[row, old]
    assert (new.document_mask == batch.document_mask).all()


def test_an_epoch_has_every_question_once_and_depends_on_seed_and_epoch_alone(cloze):
    def epoch(seed, number):
        return list(cloze.batches(tokens=20, seed=seed, epoch=number))

    first = epoch(0, 0)
    assert sorted(row for batch in first for row in batch.rows.tolist()) == list(range(len(cloze)))
    assert all(batch.document.numel() <= 20 for batch in first)
    again, other = epoch(0, 0), epoch(0, 1)
    assert all(torch.equal(x.document, y.document) for x, y in zip(first, again, strict=True))
    assert [b.rows.tolist() for b in first] != [b.rows.tolist() for b in other]


def test_labels_of_an_epoch_are_shuffled_and_the_answer_stays_the_same_name(cloze):
    seen = set()
    for batch in cloze.batches(tokens=100, seed=1, epoch=0):
        plain = cloze.batch(batch.rows)
        for row in range(len(batch.rows)):
            at = (plain.document[row] == FIRST_LABEL + plain.answers[row]).nonzero().flatten()
            assert (batch.document[row, at] == FIRST_LABEL + batch.answers[row]).all()
            seen.add(int(batch.answers[row]))
    assert len(seen) > 2  # as they are numbered the answers are labels 0 and 2 only


def test_questions_in_order_are_all_there(cloze):
    rows = [row for batch in cloze.in_order(tokens=20) for row in batch.rows.tolist()]
    assert sorted(rows) == list(range(len(cloze)))


def test_too_many_names_and_no_questions_are_refused():
    vocabulary = cloze_vocabulary(questions(), n_labels=2, max_size=100)
    with pytest.raises(TaskError, match="3 names, there are 2 labels") as refused:
        Cloze.encode(questions(), vocabulary, n_labels=2)
    assert "n_labels" in refused.value.hint
    with pytest.raises(TaskError, match="no question"):
        Cloze.encode([], vocabulary, n_labels=2)


@pytest.mark.parametrize("tokens", [1, 7, 30, 1000])
def test_parts_are_as_large_as_they_can_be(tokens):
    chance = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 12, (50,), generator=chance)
    order = torch.randperm(50, generator=chance)
    parts = cut_by_tokens(sizes, order, tokens=tokens)
    assert torch.cat(parts).tolist() == order.tolist()
    for part, after in zip(parts, [*parts[1:], None], strict=True):
        assert len(part) == 1 or len(part) * sizes[part].max() <= tokens
        if after is not None:
            longer = torch.cat([part, after[:1]])
            assert len(longer) * sizes[longer].max() > tokens
