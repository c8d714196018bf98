"""Lenses on other layers, on a changed model, and one lens for many heads."""

import copy
from dataclasses import replace

import pytest
import torch

from saccade.errors import LensError, UsageError
from saccade.interp.heads.capture import output_matrix
from saccade.interp.heads.model import wrap_model
from saccade.interp.lenses.evaluate import evaluate_lenses
from saccade.interp.studies.transfer import (
    RIDGES,
    held_out_of,
    moved_to,
    share_lenses,
    transfer_matrix,
    transfer_to,
)


@pytest.fixture(scope="module")
def transfer(story_lenses, unseen):
    return transfer_matrix(story_lenses, unseen)


def test_own_lenses_have_no_extra_kl_and_others_do(stories, transfer):
    assert transfer.kl.shape == (stories.n_layers, stories.n_layers)
    assert (transfer.extra.diagonal() == 0).all()
    away = ~torch.eye(stories.n_layers, dtype=torch.bool)
    assert transfer.extra[away].mean() > 0
    own = float(transfer.kl.diagonal().mean())
    assert transfer.gain == pytest.approx(transfer.baseline_kl - own) and transfer.gain > 0
    assert transfer.by_distance()[0] == 0.0
    assert transfer.by_distance()[2] == pytest.approx(
        float(torch.cat([transfer.extra.diagonal(2), transfer.extra.diagonal(-2)]).median())
    )


def test_a_lens_of_a_layer_that_writes_alike_costs_nothing_there(stories, story_lenses, unseen):
    """Lenses of layer 2 turned into the coordinates of layer 0 read layer 2 as its own do."""
    home, away = 2, 0
    writes = {at: output_matrix(stories.layer(at)) for at in (home, away)}
    sample = held_out_of(story_lenses, unseen).sample
    mean = {at: sample.z[at].mean(0) for at in (home, away)}
    lens = copy.deepcopy(story_lenses.by_layer[away])
    # The activation of head h of layer 0 that writes the same as that of head h of layer 2.
    through = writes[home] @ torch.linalg.pinv(writes[away])  # [head, d_head, d_head]
    own = story_lenses.by_layer[home]
    lens.weight.data.copy_(torch.linalg.solve(through, own.weight.data))
    at_mean = torch.einsum("hi,hid->hd", mean[home], own.weight.data) + own.bias.data
    lens.bias.data.copy_(at_mean - torch.einsum("hi,hid->hd", mean[away], lens.weight.data))
    lens.token_bias.data.copy_(own.token_bias.data)
    planted = replace(story_lenses, by_layer={away: lens, home: own})
    found = transfer_matrix(planted, unseen)
    assert float(found.extra[0, 1]) == pytest.approx(0.0, abs=0.02)


def test_a_short_fine_tune_keeps_most_of_the_gain(stories, story_lenses, unseen):
    hf = copy.deepcopy(stories.hf).train().requires_grad_(True)
    optimiser = torch.optim.SGD(hf.parameters(), lr=0.02)
    for row in unseen.windows[:4]:
        hf(input_ids=row[None], labels=row[None]).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    changed = wrap_model(hf, stories.tokenizer, name="fine-tuned")
    found = transfer_to(story_lenses, changed, unseen)
    assert changed.fingerprint != stories.fingerprint
    assert found.changed_kl != found.kl
    assert 0.5 < found.kept < 1.5
    assert found.to_dict()["extra"] == pytest.approx(found.changed_kl - found.kl, abs=1e-5)


def test_the_same_model_is_no_change(stories, story_lenses, unseen):
    found = transfer_to(story_lenses, stories, unseen)
    assert (found.extra, found.kept) == (0.0, 1.0)


def test_another_model_is_refused(story_lenses):
    from families import tiny

    other = wrap_model(tiny("llama"), None, name="another")
    with pytest.raises(LensError, match="another is not a version of"):
        moved_to(story_lenses, other)


def test_sharing_costs_divergence_and_saves_numbers(story_lenses, unseen):
    shared = share_lenses(story_lenses, unseen, sizes=(1, 2))
    names = [way.name for way in shared.ways]
    assert names == [
        *("a head, as fitted", "a head, by least squares"),
        *("1 layer", "2 layers", "all layers"),
    ]
    numbers = [way.numbers for way in shared.ways[2:]]
    assert numbers == sorted(numbers, reverse=True)
    assert shared.ways[0].kl < shared.ways[-1].kl < shared.baseline_kl


def test_the_ridge_is_chosen_on_windows_that_are_not_judged(story_lenses, unseen):
    """Whatever the judged half is, the choice is the same; other validation windows change it."""
    n = len(unseen.windows) // 2
    stories = unseen.windows[: 2 * n]
    noise = torch.randint_like(stories[:n], 3, 200, generator=torch.Generator().manual_seed(5))

    def chosen(first, second):
        both = replace(unseen, windows=torch.cat([first, second]))
        shared = share_lenses(story_lenses, both, sizes=(1,))
        return [way.ridge for way in shared.ways], [way.kl for way in shared.ways]

    ridges, kl = chosen(stories[:n], stories[n:])
    on_noise, kl_on_noise = chosen(stories[:n], noise)
    by_noise, _ = chosen(noise, stories[n:])
    assert ridges[0] is None and set(ridges[1:]) <= set(RIDGES)
    assert ridges == on_noise != by_noise
    assert all(abs(a - b) > 0.1 for a, b in zip(kl, kl_on_noise, strict=True))  # other text


def test_a_shared_lens_is_scored_with_its_ridge_on_the_second_half(story_lenses, unseen):
    """By the whole vocabulary, from a lens built here."""
    from saccade.interp.studies.transfer import _lens, _shared, _Written

    layer = 2
    one = replace(story_lenses, by_layer={layer: story_lenses.by_layer[layer]})
    way = share_lenses(one, unseen, sizes=()).ways[-1]
    assert way.name == "all layers"
    written = _Written.of(one, layer)
    lens = _lens(one, layer, _shared({layer: written}, 1, way.ridge)[layer], written)
    second = replace(unseen, windows=unseen.windows[len(unseen.windows) // 2 :])
    found = evaluate_lenses(
        replace(one, by_layer={layer: lens}), second, max_positions=256, baselines=[]
    )
    assert way.kl == pytest.approx(found.lenses.means["kl"], abs=0.02)


def test_a_single_window_is_refused_for_sharing(story_lenses, unseen):
    with pytest.raises(UsageError, match="holds 1 window of 61 tokens: two are needed"):
        share_lenses(story_lenses, replace(unseen, windows=unseen.windows[:1]))


def test_a_shared_lens_is_least_squares_on_what_heads_write(stories, story_lenses):
    """The sums of z, brought to the stream, are the sums of what heads write there."""
    from saccade.interp.studies.transfer import _shared, _Written

    layer = 1
    found = _shared({layer: _Written.of(story_lenses, layer)}, 1, 0.1)[layer]
    statistics = story_lenses.statistics
    writes = output_matrix(stories.layer(layer)).double()
    d = stories.d_model
    aa, af = torch.zeros(d, d).double(), torch.zeros(d, d).double()
    for head in range(8):
        aa += writes[head].T @ statistics.covariance(1, "zz")[head] @ writes[head]
        af += writes[head].T @ statistics.covariance(1, "zf")[head]
    ridge = 0.1 * aa.diagonal().mean() * torch.eye(d)
    torch.testing.assert_close(found, writes @ torch.linalg.solve(aa + ridge, af))


def test_lenses_without_their_sums_cannot_be_shared(story_lenses, unseen):
    with pytest.raises(LensError, match="have no stored statistics"):
        share_lenses(replace(story_lenses, stored={}), unseen)
