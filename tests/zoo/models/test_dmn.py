"""Dynamic memory networks: the gates against the paper's formula, laws of padding, and learning."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.models.dmn import DynamicMemoryNetwork, WordReader
from saccade.zoo.tasks.babi import StoryBatch

WORDS, D, FACTS, LENGTH = 13, 8, 5, 4
LENGTHS = [3, 5, 1]


def make_batch(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(FACTS) < torch.tensor(lengths)[:, None]
    facts = torch.randint(1, WORDS, (len(lengths), FACTS, LENGTH), generator=generator)
    facts[:, :, -1] *= torch.randint(0, 2, facts.shape[:2], generator=generator)
    question = torch.randint(1, WORDS, (len(lengths), 3), generator=generator)
    none = torch.zeros(len(lengths), 0, dtype=torch.long)
    return StoryBatch(
        facts=facts * mask[:, :, None],
        fact_mask=mask,
        question=question,
        answer=question[:, 0],
        support=none,
        support_mask=none.bool(),
        task=none.sum(1),
    )


def make_model(form, **sizes):
    torch.manual_seed(0)
    return DynamicMemoryNetwork(n_words=WORDS, d_hidden=D, form=form, dropout=0.0, **sizes).eval()


def test_the_gates_of_dmn_plus_are_the_papers_formula():
    model, batch = make_model("plus", n_episodes=2), make_batch()
    facts, question = model.input(batch.facts, batch.fact_mask, batch.question)
    answered = model(batch)
    # W1 of the paper sees [f * q, f * m, |f - q|, |f - m|]; ours is cut in two.
    (product_q, difference_q), (product_m, difference_m) = (
        layer.weight.chunk(2, 1) for layer in (model.gate_of_question, model.gate_of_memory)
    )
    first = torch.cat([product_q, product_m, difference_q, difference_m], 1)
    for row, n in enumerate(LENGTHS):
        f, q = facts[row, :n], question[row]
        memory = q
        for episode in range(2):
            z = torch.cat([f * q, f * memory, (f - q).abs(), (f - memory).abs()], 1)
            hidden = torch.tanh(z @ first.T + model.gate_of_question.bias)
            gates = model.gate_score(hidden)[:, 0].softmax(0)
            torch.testing.assert_close(answered.weights[row, episode, :n], gates)
            recalled = model.episode(model.episode.project(f[None]), gates[None])[0]
            layer = model.memory[episode]
            memory = layer(torch.cat([memory, recalled, q])).relu()
        logits = model.output(torch.cat([memory, q]))
        torch.testing.assert_close(answered.logits[row], logits)


def test_an_episode_of_the_original_mixes_a_gru_step_by_its_gates():
    model, batch = make_model("original", n_episodes=1), make_batch()
    facts, question = model.input(batch.facts, batch.fact_mask, batch.question)
    answered = model(batch)
    for row, n in enumerate(LENGTHS):
        hidden = torch.zeros(1, D)
        for place in range(n):
            stepped = model.episode.step(facts[row, place][None], hidden).output
            gate = answered.weights[row, 0, place]
            hidden = gate * stepped + (1 - gate) * hidden
        memory = model.memory.step(hidden, question[row][None]).output[0]
        logits = model.output(torch.cat([memory, question[row]]))
        torch.testing.assert_close(answered.logits[row], logits)


@pytest.mark.parametrize("form", ["plus", "original"])
def test_padding_does_not_change_the_answer(form):
    model, batch = make_model(form), make_batch()
    wider = batch._replace(
        facts=functional.pad(batch.facts, (0, 2, 0, 3)),
        fact_mask=functional.pad(batch.fact_mask, (0, 3)),
        question=functional.pad(batch.question, (0, 2)),
    )
    torch.testing.assert_close(model(batch).logits, model(wider).logits)
    gates = model(batch).weights
    assert gates.shape == (3, 3, FACTS)
    assert (gates[~batch.fact_mask[:, None].expand_as(gates)] == 0).all()


def test_a_fact_of_the_original_is_the_state_after_its_last_word():
    batch = make_batch()
    torch.manual_seed(0)
    reader = WordReader(n_words=WORDS, d_hidden=D, dropout=0.0)
    facts = reader(batch.facts, batch.fact_mask, batch.question).facts
    for row, n in enumerate(LENGTHS):
        hidden = torch.zeros(1, D)
        for place in range(n):
            for word in batch.facts[row, place]:
                if word:
                    hidden = reader.story.step(reader.words(word)[None], hidden).output
            torch.testing.assert_close(facts[row, place], hidden[0])


@pytest.mark.parametrize("form", ["plus", "original"])
def test_who_came_first_is_learnt(form):
    """Three facts of one word; asked is the first of them, or the last."""
    torch.manual_seed(0)
    facts = torch.randint(3, WORDS, (128, 3, 1))
    question = torch.randint(1, 3, (128, 1))
    answer = torch.where(question == 1, facts[:, 0], facts[:, 2])[:, 0]
    none = torch.zeros(128, 0, dtype=torch.long)
    mask = torch.ones(128, 3, dtype=torch.bool)
    batch = StoryBatch(facts, mask, question, answer, none, none.bool(), none.sum(1))
    model = DynamicMemoryNetwork(
        n_words=WORDS, d_hidden=20, n_episodes=1, form=form, dropout=0.0
    ).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(120):
        loss = functional.cross_entropy(model(batch).logits, answer)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert (model(batch).logits.argmax(-1) == answer).float().mean() > 0.95
