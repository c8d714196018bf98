"""What holds for every translator, whatever is inside it."""

import torch

from saccade.zoo.cells.cell import select_rows
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.objectives.likelihood import token_loss
from saccade.zoo.tasks.vocabulary import Padded


def source_of(batch):
    return Padded(batch.source, batch.source_mask)


def alone(batch, row):
    """A source without any padding."""
    ids = batch.source[row][batch.source_mask[row]][None]
    return Padded(ids, torch.ones_like(ids, dtype=torch.bool))


def log_probs_by_stepping(model, batch):
    """One sentence after the other, one token after the other."""
    found = []
    for row in range(len(batch.source)):
        memory, state = model.start(alone(batch, row))
        for token in batch.target_in[row][batch.target_mask[row]]:
            stepped = model.step(token[None], memory, state)
            state = stepped.state
            found.append(stepped.log_probs[0])
    return torch.stack(found)


@torch.no_grad()
def check_all_at_once_is_step_by_step(model, batch):
    at_once = model(batch).log_softmax(-1)
    assert len(at_once) == batch.n_tokens
    torch.testing.assert_close(at_once, log_probs_by_stepping(model, batch), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def check_hypotheses_share_what_was_read(model, batch, follow):
    """Several hypotheses of a sentence, followed by these tokens, are as each of them alone."""
    memory, state = model.start(source_of(batch))
    tokens, n = batch.target_in[:, 0], len(follow)
    first = model.step(tokens, memory, state)
    rows = torch.arange(len(tokens)).repeat_interleave(n)
    together = model.step(tokens[rows], memory, select_rows(state, rows))
    torch.testing.assert_close(together.log_probs, first.log_probs[rows])
    second = model.step(follow.repeat(len(tokens)), memory, together.state)
    for place, token in enumerate(follow):
        single = model.step(token.expand(len(tokens)), memory, first.state)
        torch.testing.assert_close(second.log_probs[place::n], single.log_probs)
        assert (second.weights is None) == (single.weights is None)
        if single.weights is not None:
            torch.testing.assert_close(second.weights[place::n], single.weights)


def check_gradients_reach_every_weight(model, batch):
    targets = batch.target_out[batch.target_mask]
    token_loss(model.train()(batch), targets).loss.backward()
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def check_a_beam_finds_what_greedy_search_does(model, batch):
    plain = greedy(model, source_of(batch), max_length=7)
    found = beam(model, source_of(batch), size=5, max_length=7).best
    for one, best in zip(plain, found, strict=True):
        if len(one.ids) < 7:  # it has come to its end
            assert best.log_prob >= one.log_prob - 1e-4


def learn(model, batch, *, rate, steps):
    """Train on one batch, and write it: what was written, and the last loss."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    right = batch.target_out[batch.target_mask]
    for _ in range(steps):
        optimiser.zero_grad()
        loss = token_loss(model(batch), right).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    found = greedy(model.eval(), source_of(batch), max_length=11)
    return [one.ids for one in found], loss.item()
