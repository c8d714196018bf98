"""Stories as batches: every word and every fact is where the question has it."""

from itertools import chain

import pytest
import torch

from saccade.zoo.tasks.babi import Stories, parse_stories, story_vocabulary

TEXT = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Mary took the milk.
5 What is Mary carrying?\tmilk\t4
6 Mary took the apple.
7 What is Mary carrying?\tapple,milk\t4 6
1 John is a frog.
2 What is John?\tfrog\t1
"""


@pytest.fixture
def questions():
    return [question for story in parse_stories(TEXT, task=3) for question in story]


@pytest.fixture
def words(questions):
    return story_vocabulary(questions)


@pytest.mark.parametrize("most", [None, 2])
def test_a_batch_says_what_the_questions_say(questions, words, most):
    rows = [2, 0, 3]
    batch = Stories.of(questions, words, most=most).batch(torch.tensor(rows))
    for at, row in enumerate(rows):
        question = questions[row]
        facts = question.facts if most is None else question.facts[-most:]
        cut = len(question.facts) - len(facts)
        n = int(batch.fact_mask[at].sum())
        assert n == len(facts) and batch.fact_mask[at, :n].all()
        assert [tuple(words.decode(f.tolist())) for f in batch.facts[at, :n]] == list(facts)
        assert tuple(words.decode(batch.question[at].tolist())) == question.words
        assert words.words[int(batch.answer[at])] == question.answer
        support = batch.support[at][batch.support_mask[at]].tolist()
        assert support == [place - cut for place in question.support if place >= cut]
        assert batch.task[at] == 3
    assert (batch.facts[~batch.fact_mask] == 0).all()


@pytest.mark.parametrize("is_bucketed", [False, True])
def test_an_epoch_has_every_question_once_and_depends_on_seed_and_epoch_alone(
    questions, words, is_bucketed
):
    stories = Stories.of(questions * 17, words)

    def answers(epoch):
        drawn = stories.batches(5, seed=3, epoch=epoch, is_bucketed=is_bucketed)
        return [batch.answer.tolist() for batch in drawn]

    assert sorted(chain.from_iterable(answers(0))) == sorted(stories.answers.tolist())
    assert answers(1) == answers(1) != answers(2)


def test_scoring_goes_through_all_questions_the_shortest_stories_first(questions, words):
    stories = Stories.of(questions * 3, words)
    lengths = [n for b in stories.in_order(5) for n in b.fact_mask.sum(1).tolist()]
    assert lengths == sorted(lengths) and len(lengths) == 12


def test_bucketed_batches_waste_less(questions, words):
    stories = Stories.of(questions * 40, words)
    wasted = [
        sum(int((~b.fact_mask).sum()) for b in stories.batches(8, seed=0, epoch=0, is_bucketed=how))
        for how in (False, True)
    ]
    assert wasted[1] < wasted[0]


def test_an_answer_of_several_words_is_one_word_of_the_vocabulary(words):
    assert "apple,milk" in words and "where" in words and words.words[0] == "<pad>"
