"""Copies of the last token that share its prefix end where interventions on whole runs end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "heads"))  # families.py is beside its tests

from families import FAMILIES, VOCAB, tiny

from saccade.interp.effects.shared_prefix import HeadValue, SharedPrefix
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.heads.model import LanguageModel, wrap_model

N_TOKENS = 13  # longer than the sliding windows of the families
# ALiBi and masks of local attention count the keys: each copy has to stand in a row of its own.
NEED_ROWS = {"bloom", "falcon-alibi", "gpt_neo"}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request) -> LanguageModel:
    return wrap_model(tiny(request.param), None, name=request.param)


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(VOCAB, (1, N_TOKENS), generator=generator)


def some_changes(model: LanguageModel) -> list[HeadValue]:
    """Each head replaced by random numbers, the layers in no order."""
    generator = torch.Generator().manual_seed(3)
    heads = [(at, head) for at in reversed(model.layers) for head in range(at.n_heads)]
    return [
        HeadValue(at.index, head, torch.randn(at.d_head, generator=generator)) for at, head in heads
    ]


def states_by_whole_runs(model: LanguageModel, ids, changes: list[HeadValue]) -> torch.Tensor:
    """The slow reference: one run of the whole prompt for each change."""
    found = [capture(model, ids, layers=[]).final[0, -1]]
    for layer, head, value in changes:
        change = Ablate(layer, head, "mean", value, positions=[ids.shape[1] - 1])
        with intervene(model, change):
            found.append(capture(model, ids, layers=[]).final[0, -1])
    return torch.stack(found)


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def test_every_family_ends_where_whole_runs_end(model, ids):
    shared, changes = SharedPrefix.record(model, ids), some_changes(model)
    expected = states_by_whole_runs(model, ids, changes)
    assert worst(shared.states(changes), expected) < 1e-4
    # Each change has an effect that is larger than what is tolerated.
    assert float((expected[1:] - expected[0]).abs().amax(-1).min()) > 1e-3


@pytest.mark.parametrize("method", ["batch", "whole"])
def test_the_slower_methods_give_the_same_states(ids, method):
    model = wrap_model(tiny("llama"), None, name="llama")
    shared, changes = SharedPrefix.record(model, ids), some_changes(model)
    assert shared.method == "mask"
    slow = replace(shared, method=method).states(changes)
    assert worst(slow, shared.states(changes)) < 1e-4


def test_a_text_of_one_token_has_no_prefix():
    model = wrap_model(tiny("llama"), None, name="llama")
    one = torch.tensor([[7]])
    shared, changes = SharedPrefix.record(model, one), some_changes(model)
    assert worst(shared.states(changes), states_by_whole_runs(model, one, changes)) < 1e-4


def test_no_hooks_are_left_behind(ids):
    model = wrap_model(tiny("llama"), None, name="llama")
    SharedPrefix.record(model, ids).states(some_changes(model))
    hooks = [m._forward_pre_hooks or m._forward_hooks for m in model.hf.modules()]
    assert not any(hooks)


def test_a_copy_runs_through_the_layers_after_its_change_only(ids):
    model = wrap_model(tiny("llama"), None, name="llama")
    shared = SharedPrefix.record(model, ids)
    widths = []
    with model.layers[0].block.register_forward_pre_hook(
        lambda _, args: widths.append(args[0].shape[1])
    ):
        shared.states([each for each in some_changes(model) if each.layer > 0])
    assert widths == [1]  # the copy that changes nothing


def test_which_families_need_rows_of_their_own(model, ids):
    assert (SharedPrefix.record(model, ids).method == "mask") is (model.name not in NEED_ROWS)
