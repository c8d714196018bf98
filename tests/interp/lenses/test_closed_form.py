"""The closed form, each of its parts judged by torch's own solvers and by autograd.

The little model has 512 tokens, so that sums over tokens are over all of them.
"""

import pytest
import torch

from saccade.interp.heads.capture import capture
from saccade.interp.lenses import closed_form
from saccade.interp.lenses.batches import kept_positions
from saccade.interp.lenses.closed_form import baseline_lens, solve, token_variance
from saccade.interp.lenses.held_out import HeldOut
from saccade.interp.lenses.moments import fisher_information
from saccade.interp.lenses.statistics import Statistics

LAYER, HEAD = 2, 3


def metric_of(model, baseline):
    return closed_form.Metric.of(fisher_information(model.unembedding.weight, baseline.exp()))


@pytest.fixture(scope="module")
def seen(stories, corpus):
    """What the sums are over, stacked in float64: z of one head, and the final states."""
    fitted = corpus.windows[~corpus.held_out_windows()]
    captured = capture(stories, fitted)
    places = kept_positions(stories, fitted)
    special = set(stories.tokenizer.all_special_ids)
    kept = [
        (row, int(place))
        for row in range(len(fitted))
        for place in places[row]
        if place > 0 and int(fitted[row, place]) not in special
    ]
    row, place = torch.tensor(kept).T
    return captured.z[LAYER][row, place, HEAD].double(), captured.final[row, place].double()


@pytest.fixture(scope="module")
def covariances(gathered):
    """S of z, C of z with f, for the heads of one layer."""
    return tuple(gathered.statistics.covariance(LAYER, name) for name in ("zz", "zf"))


@pytest.fixture(scope="module")
def metric(stories, gathered):
    return metric_of(stories, baseline_lens(gathered.statistics))


@pytest.fixture(scope="module")
def parts(gathered, metric):
    return closed_form._ingredients(gathered.statistics, LAYER, metric)


@pytest.fixture(scope="module")
def lenses(stories, gathered, held_out):
    return solve(stories, gathered.statistics, held_out)


def test_without_a_ridge_the_map_is_that_of_least_squares(covariances, seen):
    z, f = seen
    expected = torch.linalg.lstsq(z - z.mean(0), f - f.mean(0)).solution
    found = closed_form._least_squares(*covariances, 1e-12)[HEAD]
    # The sums are of products in float32, so that is how well the two can agree.
    torch.testing.assert_close(found, expected, atol=2e-4 * float(expected.abs().max()), rtol=1e-3)


def test_a_ridge_is_that_of_least_squares_with_penalty_rows(covariances, seen):
    z, f = (each - each.mean(0) for each in seen)
    penalty = (0.3 * z.square().mean() * len(z)).sqrt() * torch.eye(z.shape[1]).double()
    rows = torch.cat([z, penalty]), torch.cat([f, f.new_zeros(len(penalty), f.shape[1])])
    expected = torch.linalg.lstsq(*rows).solution
    found = closed_form._least_squares(*covariances, 0.3)[HEAD]
    torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-3)


def test_the_metric_is_autograds_hessian_of_the_mean_predictions_partition(
    stories, gathered, metric
):
    weight, baseline = stories.unembedding.weight.double(), baseline_lens(gathered.statistics)

    def partition(f):
        return (weight @ f + baseline).logsumexp(-1)

    hessian = torch.autograd.functional.hessian(partition, torch.zeros(stories.d_model).double())
    torch.testing.assert_close(metric.fisher, hessian, atol=1e-5, rtol=1e-4)
    damping = closed_form.DAMPING * torch.linalg.eigvalsh(hessian)[-1]
    torch.testing.assert_close(
        metric.damped @ (hessian + damping * torch.eye(len(hessian))),
        torch.eye(len(hessian)).double(),
        atol=1e-4,
        rtol=0,
    )


def test_the_newton_direction_solves_autograds_gradient_and_hessian(
    stories, gathered, seen, metric
):
    """Of the KL at the baseline lens, for one head, whose z is independent there of p = baseline.

    KL(A) = mean over positions of log sum exp(W A z + c) - p . (W A z), with z centred; its
    gradient at A = 0 is minus the covariance of z with W^T p, its Hessian S (x) G.
    """
    zero = torch.zeros(stories.layers[LAYER].d_head, stories.d_model).double()
    weight = stories.unembedding.weight.double()
    some = slice(0, 2000)
    z, f = (each[some] for each in seen)
    z = z - z.mean(0)
    p = stories.unembedding.logits(f.float()).double().softmax(-1)
    baseline = p.mean(0).log()

    def kl(a):
        logits = z @ a @ weight.T + baseline
        return (logits.logsumexp(-1) - (p * logits).sum(-1)).mean()

    gradient = torch.autograd.functional.jacobian(kl, zero)
    u = p @ weight
    zz, zu = z.T @ z / len(z), z.T @ u / len(z)
    torch.testing.assert_close(gradient, -zu, atol=1e-6, rtol=1e-4)
    # Along any direction, the second derivative is that of the product S (x) G.
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(zero.shape, generator=generator).double()
    _, second = torch.autograd.functional.hvp(kl, zero, direction)
    exact = metric_of(stories, baseline.float())
    torch.testing.assert_close(second, zz @ direction @ exact.fisher, atol=1e-5, rtol=1e-3)
    step = torch.linalg.solve(zz, zu) @ torch.linalg.pinv(exact.fisher, hermitian=True)
    _, back = torch.autograd.functional.hvp(kl, zero, step)
    torch.testing.assert_close(back, -gradient, atol=1e-5, rtol=1e-3)
    # And the ingredient is that step, with its ridge and its damping.
    sampled = gathered.statistics.covariance(LAYER, "zu")[HEAD]
    s = gathered.statistics.covariance(LAYER, "zz")[HEAD]
    ridge = closed_form.NEWTON_RIDGE * s.diagonal().mean() * torch.eye(len(s))
    expected = torch.linalg.solve(s + ridge, sampled) @ metric.damped
    found = closed_form._ingredients(gathered.statistics, LAYER, metric).maps[2, HEAD]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-3)


def test_gradient_and_hessian_in_the_coefficients_are_autograds(parts, held_out):
    assert (held_out.tokens.log_weight == 0).all()  # all tokens: the mass is one everywhere
    terms = closed_form._terms(parts, held_out.sample.z[LAYER], held_out.vectors)
    generator = torch.Generator().manual_seed(2)
    mix = 0.5 * torch.rand(len(parts.mean), terms.shape[1], generator=generator)
    found = closed_form._curvature(terms, held_out, mix)

    def kl(each):
        logits = held_out.baseline.double() + torch.einsum("k,knw->nw", each, of_head)
        return (logits.logsumexp(-1) - (held_out.teacher.double() * logits).sum(-1)).mean()

    for head in range(len(mix)):
        of_head = terms[head].double()
        at = mix[head].double()
        gradient = torch.autograd.functional.jacobian(kl, at)
        hessian = torch.autograd.functional.hessian(kl, at)
        size = float(hessian.abs().max())
        torch.testing.assert_close(found.gradient[head].double(), gradient, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(
            found.hessian[head].double(), hessian, atol=1e-4 * size, rtol=1e-3
        )


def test_the_variance_of_a_tokens_logit_is_the_quadratic_form(stories, parts, covariances):
    """d_head is 8, below the rank that is kept: nothing is lost."""
    zz, zf = covariances
    assert parts.spread.shape[1] == zz.shape[-1] <= closed_form.VARIANCE_RANK
    a = closed_form._least_squares(zz, zf, closed_form.NEWTON_RIDGE)
    weight = stories.unembedding.weight.double()
    expected = torch.einsum("wd,hid,hij,hje,we->hw", weight, a, zz, a, weight)
    found = token_variance(stories, parts.spread)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-3)


def test_a_lens_is_the_mixture_of_its_ingredients(stories, gathered, held_out, metric):
    """The lens's own logits on the held-out text are those that were calibrated."""
    parts = {
        layer: closed_form._ingredients(gathered.statistics, layer, metric)
        for layer in gathered.statistics.layers
    }
    shared = closed_form._shared_mix(parts, held_out)
    mix = closed_form._own_mix(parts[LAYER], LAYER, held_out, *shared)
    terms = closed_form._terms(parts[LAYER], held_out.sample.z[LAYER], held_out.vectors)
    expected = held_out.baseline + torch.einsum("hk,hknw->nhw", mix, terms)
    baseline = baseline_lens(gathered.statistics)
    lens = closed_form._lens(stories, LAYER, parts[LAYER], mix, baseline)
    found = lens(held_out.sample.z[LAYER])
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)


def test_the_mixture_is_near_the_best_there_is_on_the_held_out_text(parts, held_out, lenses):
    """No small change of a head's coefficients gives less KL and stays as near to the others."""
    shared, loyalty = closed_form._shared_mix({LAYER: parts}, held_out)
    mix = closed_form._own_mix(parts, LAYER, held_out, shared, loyalty)
    terms = closed_form._terms(parts, held_out.sample.z[LAYER], held_out.vectors)
    found = closed_form._curvature(terms, held_out, mix)
    slope = found.gradient + (mix - shared) @ (closed_form.LOYALTY * loyalty)
    start = closed_form._curvature(terms, held_out, torch.zeros_like(mix)).gradient
    assert slope.norm() < 0.01 * start.norm()


def test_the_baseline_lens_is_the_mean_prediction(stories, corpus, gathered):
    fitted = corpus.windows[~corpus.held_out_windows()]
    p = stories.hf(fitted, use_cache=False).logits.double().softmax(-1)
    mean = p[:, 1:].mean((0, 1))  # without the first token, on which attention rests
    baseline = baseline_lens(gathered.statistics)
    assert float(baseline.exp().sum()) == pytest.approx(1.0, abs=1e-5)
    # From a part of the positions, so only nearly: the divergence of the two says how nearly.
    assert float((mean * (mean.log() - baseline)).sum()) < 0.03


def test_nearly_every_lens_beats_the_baseline_one_on_text_it_never_saw(lenses, judged):
    kl = torch.stack([judged.kl(lens, layer) for layer, lens in lenses.items()])
    baseline = judged.baseline_kl()
    assert (kl < baseline).float().mean() >= 0.95
    assert kl.mean() < baseline - 0.1


def with_heads(gathered, stories, change):
    """The sums and held-out text of the same run, had some heads held something else."""
    from saccade.interp.lenses.held_out import Sample

    sample, statistics = gathered.sample, Statistics.empty(stories)
    for start in range(0, len(sample), 32):
        some = slice(start, start + 32)
        z = {
            layer: change(layer, activation[some].clone()) for layer, activation in sample.z.items()
        }
        statistics.add(stories, {k: v[:, None] for k, v in z.items()}, sample.final[some, None])
    z = {layer: change(layer, activation.clone()) for layer, activation in sample.z.items()}
    changed = Sample(z=z, final=sample.final)
    return statistics, HeldOut.of(stories, changed, baseline_lens(statistics))


@pytest.mark.parametrize("value", [0.0, 0.7])
def test_a_head_that_always_holds_the_same_gets_the_baseline_lens(stories, gathered, value):
    def change(layer, activation):
        if layer == LAYER:
            activation[:, HEAD] = value
        return activation

    statistics, held_out = with_heads(gathered, stories, change)
    lens = solve(stories, statistics, held_out)[LAYER]
    baseline = baseline_lens(statistics)
    said = lens(held_out.sample.z[LAYER][:7]).log_softmax(-1)
    assert all(torch.isfinite(value).all() for value in lens.state_dict().values())
    torch.testing.assert_close(said[:, HEAD], baseline.expand(7, -1), atol=1e-3, rtol=1e-3)
    assert (said[:, HEAD - 1] - baseline).abs().max() > 0.1  # the others still say something


def test_a_head_that_uses_some_of_its_dimensions_only_has_the_variance_of_the_quadratic_form(
    stories, gathered, metric
):
    """Its covariance has eigenvalues of zero, which rounding puts a little below."""

    def change(layer, activation):
        if layer == LAYER:
            activation[:, HEAD, 3:] = activation[:, HEAD, :1]
        return activation

    statistics, _ = with_heads(gathered, stories, change)
    zz, zf = (statistics.covariance(LAYER, name) for name in ("zz", "zf"))
    assert torch.linalg.matrix_rank(zz[HEAD], rtol=1e-6) == 3
    a = closed_form._least_squares(zz, zf, closed_form.NEWTON_RIDGE)[HEAD]
    moved = stories.unembedding.weight.double() @ a.T  # [token, d_head]
    expected = torch.einsum("wi,ij,wj->w", moved, zz[HEAD], moved)
    spread = closed_form._ingredients(statistics, LAYER, metric).spread
    found = token_variance(stories, spread)[HEAD]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-3)


def test_on_the_held_out_text_no_head_is_worse_than_the_mixture_it_starts_from(
    stories, gathered, held_out, lenses, monkeypatch
):
    monkeypatch.setattr(closed_form, "SHARES", (0.0,))
    for layer, mixed in solve(stories, gathered.statistics, held_out).items():
        assert (held_out.kl(lenses[layer], layer) <= held_out.kl(mixed, layer) + 1e-6).all()


def test_each_head_ends_at_the_best_of_three_points_between_the_mixture_and_matched_moments(
    stories, gathered, held_out, monkeypatch
):
    chosen = []
    for start in range(0, 64, 8):  # which point is best for a head depends on the rows
        rows = held_out.sample[start : start + 4]
        few = HeldOut.of(stories, rows, baseline_lens(gathered.statistics))
        found = {}
        for shares in (closed_form.SHARES, (0.0,), (1.0,)):
            with monkeypatch.context() as patch:
                patch.setattr(closed_form, "SHARES", shares)
                found[shares] = solve(stories, gathered.statistics, few)
        for layer, lens in found[closed_form.SHARES].items():
            mixed, matched = (few.logits(found[share,][layer], layer) for share in (0.0, 1.0))
            points = torch.stack([mixed, (mixed + matched) / 2, matched])
            best = torch.stack([few.kl_of(each) for each in points]).argmin(0)  # [head]
            expected = torch.stack([points[p, :, head] for head, p in enumerate(best)], 1)
            torch.testing.assert_close(few.logits(lens, layer), expected, atol=1e-3, rtol=1e-3)
            chosen += best.tolist()
    assert set(chosen) == {0, 1, 2}


def test_all_lenses_write_through_the_models_own_unembedding_and_no_copy_of_it(stories, lenses):
    own = stories.unembedding.weight.data_ptr()
    assert {lens.unembed.weight.data_ptr() for lens in lenses.values()} == {own}


def test_of_the_ingredients_only_those_for_the_common_mixture_are_held_at_once(
    stories, gathered, held_out, lenses, monkeypatch
):
    """Those of all layers are four times as large as the lenses themselves."""
    import gc
    import weakref

    monkeypatch.setattr(closed_form, "SHARED_LAYERS", 2)
    alive, most = weakref.WeakSet(), []
    ingredients = closed_form._ingredients

    def watched(*arguments):
        found = ingredients(*arguments)
        gc.collect()
        alive.add(found.maps)
        most.append(len(alive))
        return found

    monkeypatch.setattr(closed_form, "_ingredients", watched)
    solve(stories, gathered.statistics, held_out)
    shared = len(closed_form._some(gathered.statistics.layers))
    assert len(most) == len(gathered.statistics.layers) > shared + 1
    assert max(most) <= shared
