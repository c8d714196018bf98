"""The online model: when it speaks, what it says, and that its gradient is the right one."""

import itertools

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.decoding.beam import beam
from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.decoding.stepper import Stepper
from saccade.zoo.models.hard_attention import OnlineTranslator
from saccade.zoo.tasks.pairs import Pairs
from saccade.zoo.tasks.vocabulary import EOS, Padded, Ragged

N_SOURCE, N_TARGET = 11, 13


def make(*, seed=0, std=0.7, odds=0.0):
    torch.manual_seed(seed)
    model = OnlineTranslator(n_source=N_SOURCE, n_target=N_TARGET, d_embed=5, d_hidden=7)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=std)
    torch.nn.init.constant_(model.coin.bias, odds)
    return model.eval()


@pytest.fixture
def batch():
    source = [[7, 5, 10, 4, 9, 8, 6], [4, 5, 6], [9, 8, 5, 4]]
    target = [[12, 5, 7], [7, 11], [4]]
    return Pairs.of(Ragged.of(source), Ragged.of(target)).batch(torch.arange(3))


def alone(batch, row):
    ids = batch.source[row][batch.source_mask[row]][None]
    return Padded(ids, torch.ones_like(ids, dtype=torch.bool))


@pytest.mark.parametrize("odds", [-30.0, -1.0, 0.0, 30.0])
@pytest.mark.parametrize("is_training", [False, True])
def test_every_target_is_said_to_its_end_and_nothing_on_padding(batch, odds, is_training):
    aligned = make(odds=odds).train(is_training).align(batch)
    assert torch.equal(aligned.is_emitted.sum(1), batch.target_mask.sum(1))
    assert not (aligned.is_emitted & ~batch.source_mask).any()
    assert not (aligned.is_free & ~batch.source_mask).any()


def test_a_coin_that_never_falls_leaves_all_to_the_end_and_one_that_always_does_to_the_beginning(
    batch,
):
    n_inputs, n_symbols = batch.source_mask.sum(1), batch.target_mask.sum(1)
    late, early = make(odds=-99.0).align(batch).is_emitted, make(odds=99.0).align(batch).is_emitted
    for row, (n, m) in enumerate(zip(n_inputs.tolist(), n_symbols.tolist(), strict=True)):
        assert late[row].nonzero()[:, 0].tolist() == list(range(n - m, n))
        assert early[row].nonzero()[:, 0].tolist() == list(range(m))


@torch.no_grad()
def test_led_by_the_target_it_does_what_it_does_step_by_step(batch):
    n_compared = 0
    for seed in range(5):
        model = make(seed=seed)
        aligned = model.align(batch)
        at_once = model(batch).log_softmax(-1).split(batch.target_mask.sum(1).tolist())
        for row in range(3):
            said = aligned.is_emitted[row].nonzero()[:, 0]
            n = next((i for i, at in enumerate(said) if not aligned.is_free[row, at]), len(said))
            memory, state = model.start(alone(batch, row))
            for t in range(n):  # up to the first symbol that had to be said
                stepped = model.step(batch.target_in[row, t : t + 1], memory, state)
                state = stepped.state
                torch.testing.assert_close(stepped.log_probs[0], at_once[row][t])
                assert stepped.weights[0].argmax() == said[t] and stepped.weights[0].sum() == 1
                n_compared += 1
    assert n_compared > 5


@torch.no_grad()
def test_hypotheses_of_a_sentence_listen_each_for_itself_and_end_with_the_source(batch):
    model = make()
    source = Padded(batch.source, batch.source_mask)
    assert isinstance(model, Stepper)
    together = beam(model, source, size=3, max_length=9, n_best=2).hypotheses
    for row, found in enumerate(together):
        single = beam(model, alone(batch, row), size=3, max_length=9, n_best=2).hypotheses[0]
        assert [one.ids for one in found] == [one.ids for one in single]
        for one, other in zip(found, single, strict=True):
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            n = int(batch.source_mask[row].sum())
            assert len(one.ids) <= n and EOS not in one.ids
            places = one.weights.argmax(-1)
            assert (places.diff() >= 0).all() and (places < n).all()


def exact_bound(model, batch):
    """The bound on the likelihood of one pair: ``E_q[log p(y, falls) - log q(falls)]``.

    Falls are drawn from q, which speaks where it must; p knows of no must.
    """
    n, m = batch.source.shape[1], batch.target_in.shape[1]
    inputs = model.cell.project(model.source_embed(batch.source))
    words = model.word_proj(model.target_embed.weight)
    total = 0.0
    for falls in itertools.product((False, True), repeat=n):
        hidden, said, before = model.cell.start(1), 0, torch.tensor([False])
        log_prob, reward, is_counted = 0.0, 0.0, True
        for i, fall in enumerate(falls):
            word = words[batch.target_in[:, min(said, m - 1)]]
            hidden = model.listen(inputs[:, i], word, before, hidden)
            odds = model.coin(hidden)[0, 0]
            must, may = m - said >= n - i, said < m
            if may and not must:
                log_prob = log_prob + torch.nn.functional.logsigmoid(odds if fall else -odds)
            elif fall != (must and may):  # the coin has no say: count this way once
                is_counted = False
                break
            elif fall:
                reward = reward + torch.nn.functional.logsigmoid(odds)
            before = torch.tensor([fall])
            if fall:
                log_probs = model.output(hidden).log_softmax(-1)
                reward = reward + log_probs[0, batch.target_out[0, said]]
                said += 1
        if is_counted:
            total = total + log_prob.exp() * reward
    return total


def test_the_gradient_is_that_of_the_bound_summed_over_all_walks():
    torch.manual_seed(0)
    pairs = Pairs.of(Ragged.of([[7, 5, 10]]), Ragged.of([[12]]))
    batch = pairs.batch(torch.arange(1))
    model = make(std=0.5).train()
    exact = exact_bound(model, batch)
    wanted = torch.autograd.grad(exact, [model.coin.weight, model.output.bias])
    found = model.loss(batch, n_samples=20_000, entropy_weight=0.0)
    assert found.bound.item() == pytest.approx(exact.item(), abs=0.03)
    slopes = torch.autograd.grad(-found.loss, [model.coin.weight, model.output.bias])
    for slope, right in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(slope, right, atol=0.03, rtol=0.05)


def test_gradients_reach_every_weight(batch):
    model = make().train()
    model.loss(batch, n_samples=3, entropy_weight=0.1).loss.backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_without_reward_the_coin_learns_no_more_than_that_it_must_speak_at_the_end(batch):
    model = make().train()
    torch.manual_seed(1)
    aligned = model.align(batch)
    forced = (
        torch.nn.functional.logsigmoid(aligned.odds)[aligned.is_emitted & ~aligned.is_free].sum()
        / 3
    )
    (wanted,) = torch.autograd.grad(-forced, model.coin.bias)
    torch.manual_seed(1)
    found = model.loss(batch, n_samples=1, entropy_weight=0.0, reward_weight=0.0)
    torch.testing.assert_close(torch.autograd.grad(found.loss, model.coin.bias)[0], wanted)


def test_a_target_longer_than_its_source_is_refused():
    batch = Pairs.of(Ragged.of([[7], [5, 6]]), Ragged.of([[5, 6], [4]])).batch(torch.arange(2))
    with pytest.raises(UsageError, match="3 symbols cannot be said while a source of 2 is read"):
        make()(batch)


def test_it_learns_to_wait_until_a_letter_is_heard():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    letters = torch.randint(4, 8, (64, 3), generator=generator)
    # Two frames of silence (8) before each letter: whoever speaks at once has to guess.
    frames = torch.full((64, 3, 3), 8)
    frames[:, :, 2] = letters
    pairs = Pairs.of(Ragged.of(frames.flatten(1).tolist()), Ragged.of(letters.tolist()))
    batch = pairs.batch(torch.arange(64))
    model = OnlineTranslator(n_source=9, n_target=9, d_embed=8, d_hidden=24).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(160):
        optimiser.zero_grad()
        model.loss(batch, n_samples=2, entropy_weight=1.0).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    found = greedy(model.eval(), Padded(batch.source, batch.source_mask), max_length=9)
    right = [one.ids == target for one, target in zip(found, letters.tolist(), strict=True)]
    assert sum(right) >= 60
    places = torch.stack([one.weights.argmax(-1)[:3] for one in found if len(one.weights) >= 3])
    assert (places >= torch.tensor([2, 5, 8])).float().mean() > 0.9
