"""Gradient steps on the KL, judged by autograd on its definition and by held-out text."""

import copy

import pytest
import torch

from saccade.distributed import Processes
from saccade.interp.lenses import gather as checkpoints
from saccade.interp.lenses.closed_form import solve
from saccade.interp.lenses.gather import Checkpoint
from saccade.interp.lenses.held_out import SampledTokens, sample_tokens
from saccade.interp.lenses.polish import LayerState, PolishConfig, gradient_of, polish

LAYER = 2
CONFIG = PolishConfig(steps=12, rows=7, tokens=384)


@pytest.fixture(scope="module")
def closed(stories, gathered, held_out):
    return solve(stories, gathered.statistics, held_out)


@pytest.fixture(scope="module")
def polished(stories, closed, gathered, held_out, train):
    lenses = copy.deepcopy(closed)
    return run(stories, lenses, gathered, held_out, train)


@pytest.fixture(scope="module")
def train(corpus, corpus_of):
    """The text without its held-out end."""
    return corpus_of(corpus.windows[:-9])


def run(model, lenses, gathered, held_out, text, *, config=CONFIG, **more):
    processes = Processes()
    statistics = gathered.statistics
    polish(model, lenses, statistics, held_out, text, config=config, processes=processes, **more)
    return lenses


@pytest.fixture(scope="module")
def state(closed, gathered):
    return LayerState.of(copy.deepcopy(closed[LAYER]), gathered.statistics, LAYER)


@pytest.fixture(scope="module")
def sample(judged):
    return judged.sample[torch.arange(97)]


@pytest.fixture(scope="module")
def teacher(stories, sample):
    return stories.hf.lm_head(sample.final).softmax(-1)


@pytest.fixture(scope="module")
def exact(stories, state, sample, teacher):
    """The gradient of the summed KL by autograd, from the lens itself, in whitened coordinates."""
    z, lens = sample.z[LAYER], copy.deepcopy(state.lens)
    weight = state.weight.clone().requires_grad_()
    said = torch.einsum("nhi,hij,hjd->nhd", z - state.mean, state.whiten, weight[:, :-1])
    said = said + weight[:, -1]
    logits = said @ stories.unembedding.weight.T + lens.token_bias
    target = teacher[:, None].expand_as(logits)
    kl = torch.nn.functional.kl_div(logits.log_softmax(-1), target, reduction="sum")
    kl.backward()
    return weight.grad


def drawn(stories, state, sample, teacher, *, n_tokens, draws):
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        tokens = sample_tokens(
            teacher.amax(0), teacher.mean(0), n_tokens=n_tokens, generator=generator
        )
        vectors, p = stories.unembedding.weight[tokens.ids], teacher[:, tokens.ids]
        yield gradient_of(state, sample.z[LAYER], vectors, tokens, p * tokens.log_weight.exp())


def test_with_all_tokens_the_gradient_is_autograds(stories, state, sample, teacher, exact):
    every = SampledTokens(torch.arange(512), torch.zeros(512))
    weight = stories.unembedding.weight
    found = gradient_of(state, sample.z[LAYER], weight, every, teacher)
    torch.testing.assert_close(found, exact, atol=1e-3, rtol=1e-3)
    assert exact.norm() > 1


def test_over_draws_of_half_the_tokens_the_mean_gradient_is_the_exact_one(
    stories, state, sample, teacher, exact
):
    draws = 101
    found = torch.stack(list(drawn(stories, state, sample, teacher, n_tokens=256, draws=draws)))
    error = (found.mean(0) - exact).norm()
    expected = found.std(0).norm() / draws**0.5
    assert 0 < expected < 0.01 * exact.norm()
    assert error < 2 * expected


def test_with_few_tokens_the_mean_gradient_still_points_the_same_way(
    stories, state, sample, teacher, exact
):
    """A softmax over drawn tokens is a ratio of sums: not without bias, but nearly so."""
    found = torch.stack(list(drawn(stories, state, sample, teacher, n_tokens=128, draws=101)))
    cosine = torch.cosine_similarity(found.mean(0).flatten(), exact.flatten(), dim=0)
    assert cosine > 0.98


def test_whitened_z_has_nearly_unit_covariance_and_the_lens_is_unchanged(
    closed, gathered, state, held_out
):
    zz = gathered.statistics.covariance(LAYER, "zz")
    white = torch.einsum("hij,hik,hkl->hjl", state.whiten.double(), zz, state.whiten.double())
    # Each variance v of z becomes v / (v + a tenth of their mean): below one because of the ridge.
    values = torch.linalg.eigvalsh(zz)
    expected = torch.diag_embed(values / (values + 0.1 * values.mean(-1, keepdim=True)))
    torch.testing.assert_close(white, expected, atol=1e-4, rtol=0)
    copied = copy.deepcopy(state)
    copied.write(copied.weight)
    z = held_out.sample.z[LAYER]
    torch.testing.assert_close(copied.lens(z), closed[LAYER](z), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("size", [1.0, 0.0])
def test_a_head_that_always_holds_the_same_is_whitened_to_numbers(closed, gathered, size):
    statistics = copy.deepcopy(gathered.statistics)
    activation = size * torch.randn(8, generator=torch.Generator().manual_seed(1))
    statistics.sums[f"{LAYER}.z"][3] = activation * statistics.n
    # As rounding may leave it: a little off, to both sides.
    scatter = statistics.sums[f"{LAYER}.scatter.zz"][3]
    scatter.copy_(1e-9 * torch.randn(8, 8, generator=torch.Generator().manual_seed(2)))
    state = LayerState.of(copy.deepcopy(closed[LAYER]), statistics, LAYER)
    assert torch.isfinite(state.whiten).all() and torch.isfinite(state.weight).all()


def test_no_head_ends_worse_on_the_held_out_text(closed, polished, held_out):
    for layer, lens in polished.items():
        assert (held_out.kl(lens, layer) <= held_out.kl(closed[layer], layer) + 1e-4).all()


def test_a_ruinous_step_size_leaves_every_lens_as_it_was(
    stories, closed, gathered, held_out, train
):
    config = PolishConfig(steps=4, rows=7, tokens=384, learning_rate=1e4)
    ruined = run(stories, copy.deepcopy(closed), gathered, held_out, train, config=config)
    for layer, lens in ruined.items():
        z = held_out.sample.z[layer]
        torch.testing.assert_close(lens(z), closed[layer](z), atol=1e-3, rtol=1e-3)


def test_on_text_that_nothing_saw_the_mean_kl_falls(closed, polished, judged):
    before = torch.cat([judged.kl(lens, layer) for layer, lens in closed.items()])
    after = torch.cat([judged.kl(lens, layer) for layer, lens in polished.items()])
    assert after.mean() < before.mean() - 0.003
    assert (after < before).float().mean() > 0.8


def states(lenses):
    return [value for lens in lenses.values() for value in lens.state_dict().values()]


def test_the_same_seed_gives_the_same_lenses_and_another_does_not(
    stories, closed, polished, gathered, held_out, train
):
    again = run(stories, copy.deepcopy(closed), gathered, held_out, train)
    assert all(map(torch.equal, states(again), states(polished)))
    config = PolishConfig(steps=12, rows=7, tokens=384, seed=1)
    other = run(stories, copy.deepcopy(closed), gathered, held_out, train, config=config)
    assert not any(torch.equal(other[k].weight, polished[k].weight) for k in other)


def test_polishing_that_was_stopped_goes_on_and_ends_in_the_same_lenses(
    stories, closed, polished, gathered, held_out, train, tmp_path, monkeypatch
):
    monkeypatch.setattr(checkpoints, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(checkpoints, "PAUSE_OVER_WRITING", 0)
    steps = []

    def stop_at_five(stage, done, total):
        steps.append((stage, done, total))
        if done == 5 and len(steps) == 5:
            raise KeyboardInterrupt

    def start():
        kept = Checkpoint(tmp_path, "polishing-0.safetensors")
        lenses = copy.deepcopy(closed)
        return run(
            stories, lenses, gathered, held_out, train, checkpoint=kept, progress=stop_at_five
        )

    with pytest.raises(KeyboardInterrupt):
        start()
    resumed = start()
    assert steps[5] == ("polishing", 5, 12)  # step 5 was lost: it was stopped before it was kept
    assert len(steps) == 5 + 8
    assert all(map(torch.equal, states(resumed), states(polished)))
