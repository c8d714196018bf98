"""Models tried side by side: they learn as each would alone, and the best one answers."""

import copy

import torch

from saccade.zoo.models.best_of import BestOf
from saccade.zoo.models.memn2n import MemN2N
from saccade.zoo.recipes.question_answering import answer_loss
from saccade.zoo.tasks.babi import Stories, parse_stories, story_vocabulary

TEXT = "1 Mary went home.\n2 John is out.\n3 Where is Mary?\thome\t1\n4 Where is John?\tout\t2\n"


def make_batch():
    questions = [question for story in parse_stories(TEXT * 2) for question in story]
    words = story_vocabulary(questions)
    return Stories.of(questions, words).batch(torch.arange(len(questions))), len(words)


def test_each_learns_as_it_would_alone():
    batch, n_words = make_batch()
    torch.manual_seed(0)
    models = [MemN2N(n_words=n_words, d_embed=6, noise=0.0) for _ in range(3)]
    alone = copy.deepcopy(models)
    together = BestOf(models)
    optimisers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (together, *alone)]
    for _ in range(4):
        for model, optimiser in zip((together, *alone), optimisers, strict=True):
            optimiser.zero_grad()
            answer_loss(model, batch).loss.backward()
            optimiser.step()
    for one, other in zip(together.models, alone, strict=True):
        for weight, expected in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(weight, expected)


def test_the_one_of_lowest_training_loss_answers():
    batch, n_words = make_batch()
    torch.manual_seed(0)
    together = BestOf([MemN2N(n_words=n_words, d_embed=6) for _ in range(3)]).train()
    with torch.no_grad():
        for weight in together.models[2].parameters():
            weight.zero_()  # says every word alike
        together.models[1].bags.words.mul_(30)  # is sure of what is wrong
    for _ in range(3):
        answer_loss(together, batch)
    losses = [answer_loss(each, batch).loss.item() for each in together.models]
    best = losses.index(min(losses))
    assert together.best is together.models[best] and best != 1
    together.eval()
    torch.testing.assert_close(together(batch).logits, together.models[best](batch).logits)


def test_which_is_best_is_kept_with_the_weights():
    together = BestOf([MemN2N(n_words=7), MemN2N(n_words=7)])
    together.note(torch.tensor([2.0, 1.0]))
    other = BestOf([MemN2N(n_words=7), MemN2N(n_words=7)])
    other.load_state_dict(together.state_dict())
    assert other.best is other.models[1]
