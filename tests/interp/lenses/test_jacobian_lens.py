"""The averaged-Jacobian lens is the slope of the model itself."""

import pytest
import torch

from saccade.interp.heads.capture import capture
from saccade.interp.heads.rerun import Rerun
from saccade.interp.lenses.fit import fit_lenses
from saccade.interp.lenses.fit_config import FitConfig
from saccade.interp.lenses.jacobian_lens import FIRST, fit_jacobian
from saccade.interp.lenses.lens_set import load_lenses

WINDOW = FIRST + 3


@pytest.fixture(scope="module")
def ids(tiny_llama):
    return torch.randint(3, 101, (2, WINDOW), generator=torch.Generator().manual_seed(1))


def slope_by_differences(model, ids, layer: int, head: int) -> torch.Tensor:
    """The mean over positions of d final / d z at the same position, one number at a time."""
    model_z = Rerun.record(model, ids, layer)
    step, total = 1e-2, []
    for position in range(FIRST, WINDOW):
        columns = []
        for i in range(model_z.z.shape[-1]):
            ends = []
            for sign in (1, -1):
                z = model_z.z.clone()
                z[:, position, head, i] += sign * step
                ends.append(model_z.with_heads(z)[:, position])
            columns.append((ends[0] - ends[1]) / (2 * step))
        total.append(torch.stack(columns, 1))  # [batch, d_head, d_model]
    return torch.cat(total).mean(0)


def test_the_estimate_comes_to_the_mean_slope_as_probes_grow(tiny_llama, ids):
    """Many seeds on one text: the noise of the probes goes, the mean Jacobian stays."""
    baseline = torch.zeros(tiny_llama.d_vocab)
    layer, head = 1, 2
    exact = slope_by_differences(tiny_llama, ids, layer, head)
    errors, total = [], torch.zeros_like(exact)
    for seed in range(400):
        lenses = fit_jacobian(tiny_llama, ids, baseline, layers=[layer], seed=seed)
        total += lenses[layer].inner.weight[head]
        if seed in (24, 399):
            errors.append(float((total / (seed + 1) - exact).norm() / exact.norm()))
    assert errors[1] < 0.35
    # Sixteen times the probes, a quarter of the noise.
    assert errors[1] < 0.45 * errors[0]


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("batch_tokens", [48, 14, 1])
def test_equal_slopes_are_found_without_error(tiny_llama, monkeypatch, batch_tokens, turns):
    """Where the final state is linear in z everywhere, d_model probes are all it takes.

    Each probe has its turn once in d_model positions that count, however these are cut into
    batches. Of three positions two count: not the first.
    """
    at = tiny_llama.layers[-1]
    for_all = torch.randn(at.n_heads * at.d_head, tiny_llama.d_model)

    def linear(hf, ids):
        z = torch.randn(*ids.shape, for_all.shape[0])
        for hook in at.projection._forward_pre_hooks.values():
            (z,) = hook(at.projection, (z,))
        return z @ for_all

    monkeypatch.setattr("saccade.interp.lenses.jacobian_lens.run_base", linear)
    monkeypatch.setattr("saccade.interp.lenses.jacobian_lens.FIRST", 0)
    monkeypatch.setattr("saccade.interp.lenses.jacobian_lens.BATCH_TOKENS", batch_tokens)
    ids = torch.zeros(turns * tiny_llama.d_model // 2, 3, dtype=torch.long)
    baseline = torch.zeros(tiny_llama.d_vocab)
    found = fit_jacobian(tiny_llama, ids, baseline, layers=[at.index])[at.index]
    torch.testing.assert_close(found.inner.weight.flatten(0, 1), for_all, rtol=1e-4, atol=1e-4)


def test_a_head_that_holds_its_mean_says_what_the_baseline_lens_says(stories, told):
    baseline = torch.randn(stories.d_vocab).log_softmax(-1)
    windows = told[:8]
    lens = fit_jacobian(stories, windows, baseline)[2]
    mean = capture(stories, windows, layers=[2]).z[2][:, FIRST:].mean((0, 1))
    torch.testing.assert_close(lens(mean[None])[0, 0], baseline, rtol=1e-3, atol=1e-3)


def test_it_is_fitted_stored_and_loaded_like_any_other(stories, story_file, tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))
    config = FitConfig(kind="jacobian", tokens=1024, window=61)
    lenses = fit_lenses(stories, story_file, config, save_to=tmp_path / "lens")
    again = load_lenses(tmp_path / "lens", stories)
    assert again.provenance.kind == "jacobian"
    torch.testing.assert_close(again.by_layer[3].inner.weight, lenses.by_layer[3].inner.weight)
    assert set(again.quality_of(0, 0)) == {"kl", "gain"}


@pytest.mark.parametrize("method", ["train", "polish"])
def test_it_cannot_be_trained(stories, story_file, method):
    from saccade.errors import UsageError

    config = FitConfig(kind="jacobian", method=method, tokens=1024, window=61)
    with pytest.raises(UsageError, match="jacobian lens"):
        fit_lenses(stories, story_file, config)
