"""Memory networks: ranking against a loop over candidates, finding against ranking, learning."""

import pytest
import torch
from torch.nn import functional

from saccade.zoo.models.memnn import FARTHEST, N_ROLES, MemNN
from saccade.zoo.recipes.memory_networks import supported_loss
from saccade.zoo.tasks.babi import StoryBatch

WORDS, D, FACTS, LENGTH = 17, 6, 5, 4
LENGTHS = [3, 5, 1]


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(FACTS) < torch.tensor(LENGTHS)[:, None]
    facts = torch.randint(1, WORDS, (3, FACTS, LENGTH), generator=generator) * mask[:, :, None]
    question = torch.randint(1, WORDS, (3, 3), generator=generator)
    support = torch.tensor([[2, 0, 1, 0], [4, 1, 0, 3], [0, 0, 0, 0]])
    support_mask = torch.arange(4) < torch.tensor([3, 4, 1])[:, None]
    task = torch.ones(3, dtype=torch.long)
    return StoryBatch(facts, mask, question, question[:, 1], support, support_mask, task)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return MemNN(n_words=WORDS, d_embed=D, d_hidden=7, n_ages=4).eval()


def score_by_hand(model, batch, row, found, candidate):
    """s_O of one candidate after some found facts; None is that nothing is missing."""
    total = model.question(batch.question[row][None])[0, 0] + model.steps[len(found)]
    for place, fact in enumerate(found):
        total = total + model.found(batch.facts[row, fact][None])[0, min(place, N_ROLES - 1)]
    query = model.looking(total).tanh()
    if candidate is None:
        return query @ model.nothing
    key = model.candidate(batch.facts[row, candidate][None])[0, 0]
    key = key + model.ages[min(3, LENGTHS[row] - 1 - candidate)]
    for back, table in enumerate(model.distances, start=1):
        if len(found) >= back:
            key = key + table[candidate - found[-back] + FARTHEST]
    return query @ key


def test_every_candidate_is_scored_as_by_hand_after_the_right_facts(model, batch):
    told = model.read(batch)
    found = batch.support.where(batch.support_mask, -1)
    ranked = model.rank(told, found)
    for row, n in enumerate(LENGTHS):
        right = batch.support[row][batch.support_mask[row]].tolist()
        for step in range(len(right) + 1):
            before = right[:step]
            for candidate in range(n):
                score = ranked.scores[row, step, candidate]
                expected = score_by_hand(model, batch, row, before, candidate)
                torch.testing.assert_close(score, expected)
                assert bool(ranked.mask[row, step, candidate]) == (candidate not in before)
            nothing = score_by_hand(model, batch, row, before, None)
            torch.testing.assert_close(ranked.scores[row, step, -1], nothing)
            assert ranked.mask[row, step, -1] and not ranked.mask[row, step, n:-1].any()


def test_facts_are_found_one_by_one_until_nothing_is_missing(model, batch):
    looks = model(batch).weights  # [batch, step, fact]
    for row, n in enumerate(LENGTHS):
        found = []
        while len(found) < model.max_steps:
            left = [None, *(fact for fact in range(n) if fact not in found)]
            scores = [score_by_hand(model, batch, row, found, each).item() for each in left]
            best = left[scores.index(max(scores))]
            if best is None:
                break
            found.append(best)
        expected = torch.zeros_like(looks[row])
        for step, fact in enumerate(found):
            expected[step, fact] = 1
        assert torch.equal(looks[row], expected)


def test_the_answer_does_not_depend_on_padding(model, batch):
    wider = batch._replace(
        facts=functional.pad(batch.facts, (0, 2, 0, 3)),
        fact_mask=functional.pad(batch.fact_mask, (0, 3)),
        question=functional.pad(batch.question, (0, 2)),
    )
    torch.testing.assert_close(model(batch).logits, model(wider).logits)
    one, other = (supported_loss(model, each, margin=0.1).loss for each in (batch, wider))
    torch.testing.assert_close(one, other)


def test_the_loss_is_that_of_each_step_and_of_the_answer(model, batch):
    out = supported_loss(model, batch, margin=0.2)
    total = 0.0
    for row, n in enumerate(LENGTHS):
        right = batch.support[row][batch.support_mask[row]].tolist()
        for step in range(len(right) + 1):
            wanted = right[step] if step < len(right) else None
            left = [None, *(fact for fact in range(n) if fact not in right[:step])]
            own = score_by_hand(model, batch, row, right[:step], wanted).item()
            for each in left:
                if each != wanted:
                    other = score_by_hand(model, batch, row, right[:step], each).item()
                    total += max(0.0, 0.2 - own + other)
    assert out.logged["finding"].item() == pytest.approx(total / 3, rel=1e-4)
    assert out.loss.item() == pytest.approx(sum(each.item() for each in out.logged.values()))


def test_likelihood_is_that_of_the_right_candidates_among_those_left(model, batch):
    out = supported_loss(model, batch)
    total = 0.0
    for row, n in enumerate(LENGTHS):
        right = batch.support[row][batch.support_mask[row]].tolist()
        for step in range(len(right) + 1):
            wanted = right[step] if step < len(right) else None
            left = [None, *(fact for fact in range(n) if fact not in right[:step])]
            scores = [score_by_hand(model, batch, row, right[:step], each) for each in left]
            total -= torch.stack(scores).log_softmax(0)[left.index(wanted)].item()
    assert out.logged["finding"].item() == pytest.approx(total / 3, rel=1e-4)


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_a_chain_of_facts_is_learnt_with_its_end(margin):
    """Facts "a b"; asked is what the first word leads to, by one fact or by two."""
    torch.manual_seed(0)
    n = 200
    order = torch.rand(n, 12).argsort(1) + 1  # twelve different words
    chain, others = order[:, :3], order[:, 3:9].view(n, 3, 2)
    facts = torch.cat([chain[:, None, :2], chain[:, None, 1:], others], 1)  # [n, 5, 2]
    places = torch.rand(n, 5).argsort(1)
    facts = facts.gather(1, places[:, :, None].expand(-1, -1, 2))
    support = places.argsort(1)[:, :2]
    batch = StoryBatch(
        facts=facts,
        fact_mask=torch.ones(n, 5, dtype=torch.bool),
        question=chain[:, :1],
        answer=chain[:, 2],
        support=support,
        support_mask=torch.ones(n, 2, dtype=torch.bool),
        task=torch.ones(n, dtype=torch.long),
    )
    model = MemNN(n_words=13, d_embed=40, d_hidden=60)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        optimiser.zero_grad()
        supported_loss(model, batch, margin=margin).loss.backward()
        optimiser.step()
    answered = model.eval()(batch)
    assert (answered.logits.argmax(-1) == batch.answer).float().mean() > 0.9
    assert (answered.weights[:, 0].argmax(-1) == support[:, 0]).float().mean() > 0.95
