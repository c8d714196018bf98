"""Shards fitted apart, judged by one fit over the text of all."""

from dataclasses import replace

import pytest
import torch

from saccade.errors import LensError, UsageError
from saccade.lenses.batches import CorpusBatches
from saccade.lenses.fit import fit_on
from saccade.lenses.fit_config import FitConfig
from saccade.lenses.merge import merge_lenses
from saccade.processes import Processes

# So that each window has the same company and place in a shard and in the whole.
ROWS = 1


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SACCADE_CACHE", str(tmp_path / "cache"))


def fitted(model, corpus, **settings):
    batches = CorpusBatches(model, corpus, ROWS)
    return fit_on(model, batches, FitConfig(rows=ROWS, **settings), processes=Processes())


def test_shards_fitted_apart_merge_to_one_fit_over_both(stories, told, corpus_of):
    # One of 16 windows is held out; in the whole text both held-out ones are at the end.
    a, b = told[:16], told[16:32]
    whole = corpus_of(torch.cat([a[:-1], b[:-1], a[-1:], b[-1:]]))
    parts = [fitted(stories, corpus_of(windows, name)) for windows, name in ((a, "a"), (b, "b"))]
    merged, expected = merge_lenses(parts), fitted(stories, whole)
    for name, total in expected.statistics.sums.items():
        assert torch.equal(merged.statistics.sums[name], total), name
    for layer, lens in expected.by_layer.items():
        for name, value in lens.state_dict().items():
            found = merged.by_layer[layer].state_dict()[name]
            torch.testing.assert_close(found, value, atol=1e-4, rtol=1e-4)
    assert merged.made.corpus == "a + b" and merged.made.n_tokens == expected.made.n_tokens


def test_what_cannot_be_merged_is_refused(stories, told, corpus_of):
    one = fitted(stories, corpus_of(told[:16]))
    with pytest.raises(UsageError, match="at least two sets of lenses, got 1"):
        merge_lenses([one])
    polished = fitted(stories, corpus_of(told[:16]), method="polish", steps=1)
    with pytest.raises(LensError, match="made by polish on stories hold no sums to merge"):
        merge_lenses([one, polished])


def test_lenses_of_two_models_of_one_shape_are_not_merged(stories, told, corpus_of):
    one = fitted(stories, corpus_of(told[:16]))
    other = replace(one, made=replace(one.made, model="a cousin", model_fingerprint="f" * 16))
    with pytest.raises(LensError, match=r"cannot merge lenses of a cousin \(ffffffffffffffff\)"):
        merge_lenses([one, other])
