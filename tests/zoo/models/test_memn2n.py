"""End-to-end memory networks: hops against loops over facts, laws of memory, and learning."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.memories.facts import position_weights
from saccade.zoo.models.memn2n import MemN2N
from saccade.zoo.tasks.babi import StoryBatch

WORDS, D, FACTS, LENGTH = 17, 6, 5, 4
LENGTHS = [3, 5, 0]


def batch_of(lengths=LENGTHS, seed=0, n_facts=FACTS):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(n_facts) < torch.tensor(lengths)[:, None]
    facts = torch.randint(1, WORDS, (len(lengths), n_facts, LENGTH), generator=generator)
    facts[:, :, -1] *= torch.randint(0, 2, facts.shape[:2], generator=generator)
    question = torch.randint(1, WORDS, (len(lengths), 3), generator=generator)
    empty = torch.zeros(len(lengths), 0, dtype=torch.long)
    return StoryBatch(
        facts=facts * mask[:, :, None],
        fact_mask=mask,
        question=question,
        answer=question[:, 0],
        support=empty,
        support_mask=empty.bool(),
        task=torch.ones(len(lengths), dtype=torch.long),
    )


def sentence(table, words):
    words = [int(word) for word in words if word]
    weights = position_weights(max(1, len(words)), D)
    return sum((table[w] * weights[j] for j, w in enumerate(words)), torch.zeros(D))


def by_loops(model, facts, question, *, tying, is_rectified, is_linear=False):
    """One story after the paper's section 2, fact by fact."""
    tables = model.bags.table().view(WORDS, -1, D).unbind(1)
    state = sentence(tables[0], question)
    for hop in range(model.n_hops):
        a, c = (hop, hop + 1) if tying == "adjacent" else (1, 2)
        keys, values = [], []
        for place, fact in enumerate(facts):
            age = len(facts) - 1 - place
            keys.append(sentence(tables[a], fact) + model.ages[age, a])
            values.append(sentence(tables[c], fact) + model.ages[age, c])
        scores = [torch.dot(state, key) for key in keys]
        weights = scores
        if scores and not is_linear:
            weights = torch.stack(scores).softmax(0)
        read = sum((w * v for w, v in zip(weights, values, strict=True)), torch.zeros(D))
        if tying == "layer-wise":
            state = model.carry.weight @ state
        state = state + read
        if is_rectified:
            state = torch.cat([state[: D // 2], state[D // 2 :].relu()])
    return tables[-1] @ state


@pytest.mark.parametrize("tying", ["adjacent", "layer-wise"])
@pytest.mark.parametrize("is_rectified", [False, True])
def test_answers_are_those_of_a_loop_over_stories_hops_and_facts(tying, is_rectified):
    torch.manual_seed(0)
    model = MemN2N(n_words=WORDS, d_embed=D, tying=tying, is_rectified=is_rectified).eval()
    batch = batch_of()
    logits = model(batch).logits
    for row, n in enumerate(LENGTHS):
        facts, question = batch.facts[row, :n], batch.question[row]
        expected = by_loops(model, facts, question, tying=tying, is_rectified=is_rectified)
        torch.testing.assert_close(logits[row], expected)


def test_linear_start_leaves_out_the_softmax_in_training_only():
    torch.manual_seed(0)
    model = MemN2N(n_words=WORDS, d_embed=D, noise=0.0)
    batch = batch_of()
    plain = model(batch).logits
    model.is_linear = True
    expected = by_loops(
        model,
        batch.facts[1],
        batch.question[1],
        tying="adjacent",
        is_rectified=False,
        is_linear=True,
    )
    torch.testing.assert_close(model(batch).logits[1], expected)
    torch.testing.assert_close(model.eval()(batch).logits, plain)


def test_weights_are_shares_of_the_facts_and_of_nothing_else():
    model = MemN2N(n_words=WORDS, d_embed=D, n_hops=2)
    batch = batch_of()
    weights = model(batch).weights  # [batch, hop, fact]
    assert weights.shape == (3, 2, FACTS)
    torch.testing.assert_close(weights.sum(-1)[:2], torch.ones(2, 2))
    assert (weights[~batch.fact_mask[:, None].expand_as(weights)] == 0).all()


def test_padding_does_not_change_the_answer():
    model = MemN2N(n_words=WORDS, d_embed=D).eval()
    batch = batch_of()
    wider = batch._replace(
        facts=functional.pad(batch.facts, (0, 2, 0, 3)),
        fact_mask=functional.pad(batch.fact_mask, (0, 3)),
        question=functional.pad(batch.question, (0, 2)),
    )
    torch.testing.assert_close(model(batch).logits, model(wider).logits)


def test_facts_older_than_any_age_are_as_old_as_the_oldest():
    model = MemN2N(n_words=WORDS, d_embed=D, n_ages=2).eval()
    told = MemN2N(n_words=WORDS, d_embed=D, n_ages=FACTS).eval()
    oldest = model.ages[-1:].expand(FACTS - 2, -1, -1)
    told.load_state_dict(model.state_dict() | {"ages": torch.cat([model.ages, oldest])})
    torch.testing.assert_close(model(batch_of()).logits, told(batch_of()).logits)


def test_where_somebody_went_last_is_learnt_from_answers_alone():
    """Facts "person place"; the answer is the place of the latest fact with the person asked."""
    torch.manual_seed(1)
    generator = torch.Generator().manual_seed(1)
    n, n_facts = 256, 6
    people = torch.randint(1, 4, (n, n_facts), generator=generator)
    places = torch.randint(5, 10, (n, n_facts), generator=generator)
    asked = people.gather(1, torch.randint(0, n_facts, (n, 1), generator=generator))
    last = ((people == asked).long() * torch.arange(1, n_facts + 1)).argmax(1)
    none = torch.zeros(n, 0, dtype=torch.long)
    batch = StoryBatch(
        facts=torch.stack([people, places], 2),
        fact_mask=torch.ones(n, n_facts, dtype=torch.bool),
        question=asked,
        answer=places.gather(1, last[:, None])[:, 0],
        support=none,
        support_mask=none.bool(),
        task=none.sum(1),
    )
    model = MemN2N(n_words=10, d_embed=20, n_hops=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        loss = functional.cross_entropy(model(batch).logits, batch.answer)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    answered = model.eval()(batch)
    assert (answered.logits.argmax(-1) == batch.answer).float().mean() > 0.97
    assert (answered.weights[:, 0].argmax(-1) == last).float().mean() > 0.95
