"""Readers of cloze questions, judged by loops over words and by what must not matter."""

from collections import Counter

import pytest
import torch

from saccade.zoo.models.attentive_reader import AttentiveReader, ImpatientReader
from saccade.zoo.models.deep_lstm_reader import ClozeBaseline, DeepLstmReader, joined
from saccade.zoo.tasks.cloze import FIRST_LABEL, GAP, ClozeBatch, deal_labels

N_LABELS, D_VOCAB, D_EMBED, D_HIDDEN = 7, 23, 5, 3
READERS = (AttentiveReader, ImpatientReader, DeepLstmReader)


def make_batch(n=3, *, pos=11, question_pos=6, seed=0):
    chance = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([pos, pos - 4, pos - 1])[:n]
    asked = torch.tensor([question_pos - 2, question_pos, question_pos - 1])[:n]
    document = torch.randint(3, D_VOCAB, (n, pos), generator=chance)
    question = torch.randint(3, D_VOCAB, (n, question_pos), generator=chance)
    document[document == GAP], question[question == GAP] = 3, 3
    question[torch.arange(n), torch.tensor([1, 4, 0])[:n]] = GAP
    mask, question_mask = (
        torch.arange(pos) < lengths[:, None],
        torch.arange(question_pos) < asked[:, None],
    )
    return ClozeBatch(
        document.where(mask, 0),
        mask,
        question.where(question_mask, 0),
        question_mask,
        torch.ones(n, N_LABELS, dtype=torch.bool),
        torch.randint(N_LABELS, (n,), generator=chance),
        torch.arange(n),
    )


def make(reader, **changed):
    torch.manual_seed(1)
    sizes = {"d_vocab": D_VOCAB, "n_labels": N_LABELS, "d_embed": D_EMBED, "d_hidden": D_HIDDEN}
    return reader(**sizes, **changed).eval()


@pytest.fixture
def batch():
    return make_batch()


def row_of(batch, row):
    """One question without its padding."""
    n, asked = int(batch.document_mask[row].sum()), int(batch.question_mask[row].sum())
    return batch._replace(
        document=batch.document[row : row + 1, :n],
        document_mask=batch.document_mask[row : row + 1, :n],
        question=batch.question[row : row + 1, :asked],
        question_mask=batch.question_mask[row : row + 1, :asked],
        candidates=batch.candidates[row : row + 1],
        answers=batch.answers[row : row + 1],
        rows=batch.rows[row : row + 1],
    )


def both_ways(reader, words):
    """A reading of one sequence, one step at a time."""
    outputs = []
    for cell, order in ((reader.forward_cell, words), (reader.backward_cell, words.flip(0))):
        state, states = cell.start(1), []
        for word in order:
            output, state = cell.step(word[None], state)
            states.append(output[0])
        outputs.append(states)
    ahead, back = outputs[0], outputs[1][::-1]
    return [torch.cat(pair) for pair in zip(ahead, back, strict=True)]


def ask_by_loops(model, batch, row):
    one = row_of(batch, row)
    document, question = model.embed(one.document[0]), model.embed(one.question[0])
    states = both_ways(model.document_reader, document)
    labels = range(FIRST_LABEL, FIRST_LABEL + N_LABELS)
    places = [at for at, each in enumerate(one.document[0].tolist()) if each in labels]
    places = places if model.looks_at == "names" else list(range(len(states)))
    asked = both_ways(model.question_reader, question)
    u = asked[one.question[0].tolist().index(GAP)]
    if model.asks_from == "ends":
        u = torch.cat([asked[-1][:D_HIDDEN], asked[0][D_HIDDEN:]])
    values = [torch.cat([states[at], document[at]]) for at in places]
    return places, [states[at] for at in places], values, asked, u


def answer_by_loops(model, context, u):
    g = torch.tanh(model.from_context.weight @ context + model.from_question(u))
    return torch.stack([g @ model.embed.weight[FIRST_LABEL + label] for label in range(N_LABELS)])


@pytest.mark.parametrize(("asks_from", "looks_at"), [("gap", "names"), ("ends", "words")])
@torch.no_grad()
def test_the_attentive_reader_is_its_equations(batch, asks_from, looks_at):
    model = make(AttentiveReader, asks_from=asks_from, looks_at=looks_at)
    logits, weights = model.read(batch)
    for row in range(len(batch.rows)):
        places, states, values, _, u = ask_by_loops(model, batch, row)
        scores = torch.stack([u @ (model.attention.score.key_proj.weight @ y) for y in states])
        shares = scores.softmax(0)
        context = sum(s * v for s, v in zip(shares, values, strict=True))
        torch.testing.assert_close(weights[row, 0, places], shares)
        assert weights[row].sum().item() == pytest.approx(1)
        torch.testing.assert_close(logits[row], answer_by_loops(model, context, u))


@pytest.mark.parametrize(("asks_from", "looks_at"), [("gap", "names"), ("ends", "words")])
@torch.no_grad()
def test_the_impatient_reader_is_its_equations(batch, asks_from, looks_at):
    model = make(ImpatientReader, asks_from=asks_from, looks_at=looks_at, score="dot")
    for added in (model.word_query, model.read_query, model.again):
        added.reset_parameters()  # they begin at zero
    logits, weights = model.read(batch)
    for row in range(len(batch.rows)):
        places, states, values, asked, u = ask_by_loops(model, batch, row)
        found = torch.zeros(2 * D_HIDDEN + D_EMBED)
        for step, q in enumerate(asked):
            query = u + model.word_query.weight @ q + model.read_query.weight @ found
            shares = torch.stack([query @ y for y in states]).softmax(0)
            torch.testing.assert_close(weights[row, step, places], shares)
            read = sum(s * v for s, v in zip(shares, values, strict=True))
            found = read + torch.tanh(model.again.weight @ found)
        torch.testing.assert_close(logits[row], answer_by_loops(model, found, u))
        assert (weights[row, len(asked) :] == 0).all()


@torch.no_grad()
def test_the_impatient_reader_begins_as_an_attentive_one(batch):
    attentive, impatient = make(AttentiveReader), make(ImpatientReader)
    impatient.load_state_dict(attentive.state_dict(), strict=False)
    torch.testing.assert_close(impatient(batch), attentive(batch))


@torch.no_grad()
def test_the_deep_lstm_reads_document_sign_and_question_and_every_layer_the_word(batch):
    model = make(DeepLstmReader)
    logits = model(batch)
    low, high = model.stack.layers
    for row in range(len(batch.rows)):
        one = row_of(batch, row)
        ids = [*one.document[0].tolist(), 2, *one.question[0].tolist()]
        states = [low.start(1), high.start(1)]
        for word in model.embed(torch.tensor(ids)):
            states[0] = low.step(word[None], states[0]).state
            both = torch.cat([states[0].hidden, word[None]], dim=1)
            states[1] = high.step(both, states[1]).state
        ends = torch.cat([state.hidden for state in states], dim=1)
        g = torch.tanh(model.from_end(ends))[0]
        expected = model.embed.weight[FIRST_LABEL : FIRST_LABEL + N_LABELS] @ g
        torch.testing.assert_close(logits[row], expected)


@torch.no_grad()
def test_the_deep_lstm_begins_by_saying_the_name_that_came_most():
    torch.manual_seed(0)
    n_labels, pos, n = 10, 300, 100
    model = DeepLstmReader(d_vocab=500, n_labels=n_labels).eval()
    document = torch.randint(FIRST_LABEL + n_labels, 500, (n, pos))
    most = torch.randint(n_labels, (n,))
    names = torch.cat([torch.arange(n_labels).expand(n, -1), most[:, None].expand(-1, 5)], dim=1)
    at = torch.rand(n, pos).argsort(1)[:, : names.shape[1]]
    document.scatter_(1, at, FIRST_LABEL + names)  # each name once, one of them six times
    question = torch.full((n, 1), GAP)
    every = torch.ones(n, n_labels, dtype=torch.bool)
    said = model(
        ClozeBatch(document, document > 0, question, question > 0, every, most, torch.arange(n))
    ).argmax(1)
    assert (said == most).float().mean() > 0.8


def test_document_and_question_are_joined_without_gaps(batch):
    ids, mask = joined(batch)
    for row in range(len(batch.rows)):
        one = row_of(batch, row)
        whole = [*one.document[0].tolist(), 2, *one.question[0].tolist()]
        assert ids[row, : len(whole)].tolist() == whole and mask[row].sum() == len(whole)


@pytest.mark.parametrize("reader", READERS)
@torch.no_grad()
def test_padding_does_not_change_the_answer(reader, batch):
    model = make(reader)
    together = model(batch)
    for row in range(len(batch.rows)):
        torch.testing.assert_close(together[row], model(row_of(batch, row))[0])


@pytest.mark.parametrize("reader", READERS)
@torch.no_grad()
def test_a_label_is_nothing_but_its_vector(reader, batch):
    """Other labels with the same vectors give the same answers, under their new labels."""
    model = make(reader)
    before = model(batch)
    order = torch.randperm(N_LABELS, generator=torch.Generator().manual_seed(5))
    dealt = order.expand(len(batch.rows), -1)
    labels = slice(FIRST_LABEL, FIRST_LABEL + N_LABELS)
    moved = model.embed.weight[labels].clone()
    model.embed.weight[labels][order] = moved
    after = model(deal_labels(batch, dealt))
    torch.testing.assert_close(after.gather(1, dealt), before)


@pytest.mark.parametrize("reader", READERS)
def test_every_weight_learns(reader, batch):
    model = make(reader, dropout=0.0).train()
    model(batch).square().sum().backward()
    still = [n for n, w in model.named_parameters() if w.requires_grad and w.grad is None]
    assert not still
    # A score with one query cares for no constant, so all of it moves.
    assert all(w.grad.abs().sum() > 0 for w in model.parameters() if w.requires_grad)


@pytest.mark.parametrize("score", ["additive", "bilinear", "dot"])
def test_any_score_will_do(score, batch):
    for reader in (AttentiveReader, ImpatientReader):
        weights = make(reader, score=score).read(batch).weights
        shares = weights[:, 0].sum(-1)
        torch.testing.assert_close(shares, torch.ones_like(shares))
        assert (weights.masked_select(~batch.document_mask[:, None]) == 0).all()


@torch.no_grad()
def test_a_document_without_names_is_answered_without_looking(batch):
    document = batch.document.clone()
    document[1][document[1] > 3] = 3
    for reader in (AttentiveReader, ImpatientReader):
        logits, weights = make(reader).read(batch._replace(document=document))
        assert (weights[1] == 0).all() and weights[0].sum() > 0 and logits.isfinite().all()


def test_influence_on_an_answer_is_over_the_document(batch):
    model, one = make(DeepLstmReader), row_of(batch, 1)
    shares = model.influence_on_answer(one)
    assert shares.shape == (1, 1, one.document.shape[1])
    assert 0 < shares.sum() <= 1 + 1e-5 and (shares >= 0).all()


def chosen_by_counting(rule, batch, row):
    one = row_of(batch, row)
    document = [i - FIRST_LABEL for i in one.document[0].tolist()]
    asked = [i - FIRST_LABEL for i in one.question[0].tolist()]
    before = document + asked[: asked.index(GAP - FIRST_LABEL)]
    allowed = batch.candidates[row].nonzero().flatten().tolist()

    def last(label):
        return max((at for at, each in enumerate(before) if each == label), default=-1)

    counts = Counter(document)
    if rule == "nearest":
        return max(allowed, key=last)
    if rule == "exclusive-frequency":
        allowed = [label for label in allowed if label not in asked] or allowed
    return max(allowed, key=lambda label: (counts[label], last(label)))


@pytest.mark.parametrize("rule", ["max-frequency", "exclusive-frequency", "nearest"])
def test_rules_are_what_counting_says(rule):
    model = ClozeBaseline(rule, n_labels=N_LABELS)
    for seed in range(20):
        batch = make_batch(pos=31, question_pos=8, seed=seed)
        batch.candidates[:, seed % N_LABELS] = False
        logits = model(batch).masked_fill(~batch.candidates, -torch.inf)
        wanted = [chosen_by_counting(rule, batch, row) for row in range(3)]
        assert logits.argmax(-1).tolist() == wanted
        looks = model.looks(batch)[:, 0]
        for row, label in enumerate(wanted):
            at = (batch.document[row] == label + FIRST_LABEL).nonzero().flatten()
            if len(at):
                seen = at[-1:] if rule == "nearest" else at
                assert looks[row].nonzero().flatten().tolist() == seen.tolist()
                assert looks[row].sum() == pytest.approx(1)
