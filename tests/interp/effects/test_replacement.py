"""What replaces a part: means over ordinary tokens, and the cache of the usual ones."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from saccade.errors import UsageError
from saccade.interp.effects import replacement as module
from saccade.interp.effects.replacement import Replacement, replacement_of
from saccade.interp.lenses import self_text

CLOSE = {"atol": 1e-5, "rtol": 1e-4}


@pytest.fixture(scope="module")
def ids(stories):
    rows = ["Once upon a time, there was a cat.", "Tom saw a big red ball in the park"]
    length = min(stories.encode(row).shape[1] for row in rows)
    found = torch.cat([stories.encode(row)[:, :length] for row in rows])
    found[1, 5] = next(iter(sorted(stories.encoding.special)))  # no ordinary token
    return found


@torch.no_grad()
def watched(stories, ids):
    """Each head's z, and what each feed-forward part writes, at every token: by hooks."""
    z, wrote = {}, {}
    handles = []
    for at in stories.layers:

        def keep(_, args, index=at.index, n_heads=at.n_heads):
            z[index] = args[0].reshape(*ids.shape, n_heads, -1)

        def keep_output(_, __, output, index=at.index):
            wrote[index] = output

        handles.append(at.projection.register_forward_pre_hook(keep))
        handles.append(at.block.mlp.register_forward_hook(keep_output))
    stories.hf(input_ids=ids)
    for handle in handles:
        handle.remove()
    return z, wrote


def test_the_mean_is_that_of_a_loop_over_ordinary_tokens(stories, ids):
    found = Replacement.mean(stories, ids)
    z, wrote = watched(stories, ids)
    special, n_first = stories.encoding.special, max(1, len(stories.encoding.prefix))
    places = [
        (row, pos)
        for row in range(len(ids))
        for pos in range(n_first, ids.shape[1])
        if int(ids[row, pos]) not in special
    ]
    assert (1, 5) not in places and len(places) < ids.numel() - len(ids)
    for at in stories.layers:
        heads, outputs = 0, 0
        for place in places:
            heads, outputs = heads + z[at.index][place], outputs + wrote[at.index][place]
        assert_close(found.heads[at.index], heads / len(places), **CLOSE)
        assert_close(found.feed_forward[at.index], outputs / len(places), **CLOSE)


def test_resampled_values_are_those_of_ordinary_tokens_and_a_seed_repeats_them(stories, ids):
    found, again, other = (
        Replacement.resampled(stories, ids, length=7, seed=seed) for seed in (2, 2, 3)
    )
    z, _ = watched(stories, ids)
    is_text = stories.is_text(ids)
    for layer, values in found.heads.items():
        rows = z[layer][is_text].flatten(1)
        distance = torch.cdist(values.flatten(1), rows).min(-1).values
        assert values.shape[0] == 7 and distance.max() < 1e-4
        assert torch.equal(values, again.heads[layer])
    assert not all(torch.equal(other.heads[k], v) for k, v in found.heads.items())


def test_another_prompts_values_are_those_at_its_last_token(stories):
    prompt = stories.encode("Lily looked for the cat")
    found = Replacement.last_of(stories, prompt).at_last()
    z, wrote = watched(stories, prompt)
    for at in stories.layers:
        assert_close(found.heads[at.index], z[at.index][0, -1], **CLOSE)
        assert_close(found.feed_forward[at.index], wrote[at.index][0, -1], **CLOSE)


def test_zero_is_nothing_in_the_shapes_of_the_mean(stories, ids):
    zero, mean = Replacement.zero(stories), Replacement.mean(stories, ids)
    for part in ("heads", "feed_forward"):
        here, there = getattr(zero, part), getattr(mean, part)
        assert {k: v.shape for k, v in here.items()} == {k: v.shape for k, v in there.items()}
        assert not any(v.any() for v in here.values())


def test_of_values_for_several_positions_the_last_is_taken(stories, ids):
    found = Replacement.resampled(stories, ids, length=3, seed=1)
    for layer, values in found.at_last().heads.items():
        assert torch.equal(values, found.heads[layer][-1])


@pytest.fixture
def cached(stories, monkeypatch, tmp_path):
    """Counts how often the mean is computed, with a cache of its own."""
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "USUAL_ROWS", 3)
    monkeypatch.setattr(module, "USUAL_WINDOW", 17)
    computed = []
    own = module.reference_text
    monkeypatch.setattr(
        module, "reference_text", lambda *a, **k: computed.append(1) or own(*a, **k)
    )
    return tmp_path, computed


def test_the_usual_mean_is_computed_once_and_read_from_the_cache(stories, cached):
    _, computed = cached
    first, second = Replacement.usual(stories), Replacement.usual(stories)
    assert len(computed) == 1
    for part in ("heads", "feed_forward"):
        here, there = getattr(first, part), getattr(second, part)
        assert here.keys() == there.keys()
        assert all(torch.equal(here[k], there[k]) for k in here)
    assert replacement_of(stories, "mean").by == "mean" and len(computed) == 1


@pytest.mark.parametrize(
    ("where", "name", "other"),
    [
        (module, "SEED", 5),
        (module, "USUAL_ROWS", 2),
        (module, "USUAL_WINDOW", 7),
        (self_text, "SAMPLING", 0),
    ],
)
def test_a_mean_of_text_sampled_otherwise_is_not_served(
    stories, cached, monkeypatch, where, name, other
):
    _, computed = cached
    Replacement.usual(stories)
    monkeypatch.setattr(where, name, other)
    Replacement.usual(stories)
    assert len(computed) == 2


def test_a_model_that_starts_its_texts_otherwise_has_another_sampling(stories, monkeypatch):
    settings = {"rows": 2, "window": 7, "seed": 0, "temperature": 1.0}
    before = self_text.sampling_fingerprint(stories, **settings)
    assert before == self_text.sampling_fingerprint(stories, **settings)
    assert before != self_text.sampling_fingerprint(stories, **{**settings, "temperature": 0.5})
    monkeypatch.setattr(self_text, "_start_tokens", lambda _: (7,))
    assert before != self_text.sampling_fingerprint(stories, **settings)


@pytest.mark.parametrize("content", [b"", b"no tensors at all"])
def test_a_damaged_cache_is_computed_again(stories, cached, content):
    folder, computed = cached
    first = Replacement.usual(stories)
    (file,) = folder.rglob("means.safetensors")
    file.write_bytes(content)
    again = Replacement.usual(stories)
    assert len(computed) == 2
    assert all(torch.equal(first.heads[k], again.heads[k]) for k in first.heads)
    Replacement.usual(stories)
    assert len(computed) == 2  # the damaged file has been replaced


def test_a_text_of_special_tokens_has_no_mean(stories):
    special = min(stories.encoding.special)
    with pytest.raises(UsageError, match="no text to average over"):
        Replacement.mean(stories, torch.full((2, 5), special))
