"""Copies of the last token that share its prefix end where interventions on whole runs end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "heads"))  # families.py is beside its tests

from families import FAMILIES, VOCAB, tiny
from transformers import AttentionInterface

from saccade.errors import ModelError
from saccade.interp.effects import copies, joined_pass
from saccade.interp.effects.copies import run_copies
from saccade.interp.effects.parts import FeedForwardValue, HeadsValue
from saccade.interp.heads.capture import capture, worst
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.heads.model import LanguageModel, wrap_model

N_TOKENS = 13  # longer than the sliding windows of the families
# They do not use transformers' attention interface, or their bias depends on the key (ALiBi).
NEED_ROWS = {"bloom", "falcon", "falcon-alibi", "falcon-grouped", "gpt_neo", "gptj"}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request) -> LanguageModel:
    return wrap_model(tiny(request.param), None, name=request.param)


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return wrap_model(tiny("llama"), None, name="llama")


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(VOCAB, (1, N_TOKENS), generator=generator)


def some_changes(model: LanguageModel) -> list[HeadsValue]:
    """Each head replaced by random numbers, the layers in no order."""
    generator = torch.Generator().manual_seed(3)
    heads = [(at, head) for at in reversed(model.layers) for head in range(at.n_heads)]
    return [
        HeadsValue(at.index, (head,), torch.randn(1, at.d_head, generator=generator))
        for at, head in heads
    ]


def states_by_whole_runs(model: LanguageModel, ids, changes: list[HeadsValue]) -> torch.Tensor:
    """The slow reference: one run of the whole prompt for each change."""
    found = []
    for layer, heads, value in changes:
        ablated = [
            Ablate(layer, head, "mean", value[i], positions=[ids.shape[1] - 1])
            for i, head in enumerate(heads)
        ]
        with intervene(model, ablated):
            found.append(capture(model, ids, layers=[]).final[0, -1])
    return torch.stack(found)


def test_every_family_ends_where_whole_runs_end(model, ids):
    changes = some_changes(model)
    run, expected = run_copies(model, ids, changes), states_by_whole_runs(model, ids, changes)
    assert worst(run.states[0], expected) < 1e-4
    # Each change has an effect that is larger than what is tolerated.
    plain = capture(model, ids, layers=[]).final[0, -1]
    assert worst(run.captured.final[0, 0], plain) < 1e-4
    assert float((expected - plain).abs().amax(-1).min()) > 1e-3


def test_which_families_need_rows_of_their_own(model, ids):
    assert (run_copies(model, ids, []).method == "joined") is (model.name not in NEED_ROWS)


def test_all_methods_give_the_same_run(model, ids):
    changes = some_changes(model)
    generator = torch.Generator().manual_seed(7)
    changes += [
        FeedForwardValue(at.index, torch.randn(model.d_model, generator=generator))
        for at in model.layers
        if at.reaches_stream
    ]
    fast = run_copies(model, ids, changes, attention=True, keep=True)
    for method in ("batch", "whole"):
        slow = run_copies(model, ids, changes, attention=True, keep=True, method=method)
        assert slow.method == method
        assert worst(fast.states, slow.states) < 1e-4
        assert worst(fast.ends, slow.ends) < 1e-4
        for layer in fast.captured.z:
            assert worst(fast.captured.z[layer], slow.captured.z[layer]) < 1e-4
            assert worst(fast.copies[layer], slow.copies[layer]) < 1e-4
            assert worst(fast.captured.residual[layer], slow.captured.residual[layer]) < 1e-4
            assert worst(fast.captured.attention[layer], slow.captured.attention[layer]) < 1e-4
        for layer in slow.feed_forward:
            assert worst(fast.feed_forward[layer], slow.feed_forward[layer]) < 1e-4


def test_padded_prompts_end_where_each_alone_ends(model):
    generator = torch.Generator().manual_seed(11)
    rows = torch.randint(VOCAB, (3, N_TOKENS), generator=generator)
    lengths, changes = [N_TOKENS, 5, 11], some_changes(model)
    together = run_copies(model, rows, changes, lengths=lengths, attention=True)
    for row, n in enumerate(lengths):
        alone = run_copies(model, rows[row : row + 1, :n], changes, attention=True)
        assert worst(together.states[row], alone.states[0]) < 1e-4
        for layer, weights in alone.captured.attention.items():
            assert worst(together.captured.attention[layer][row, ..., :n], weights[0]) < 1e-4


def test_the_feed_forward_part_is_what_the_block_adds_besides_its_attention(llama, ids):
    """Llama's own module, run without copies."""
    wrote = {}
    for at in llama.layers:
        at.block.mlp.register_forward_hook(
            lambda _, __, output, at=at: wrote.__setitem__(at.index, output[0, -1])
        )
    found = run_copies(llama, ids, [], method="batch").feed_forward
    joined = run_copies(llama, ids, []).feed_forward
    for at in llama.layers:
        at.block.mlp._forward_hooks.clear()
        assert worst(found[at.index][0], wrote[at.index]) < 1e-4
        assert worst(joined[at.index][0], found[at.index][0]) < 1e-4


def test_a_replaced_feed_forward_part_is_a_replaced_module_output(llama, ids):
    generator = torch.Generator().manual_seed(2)
    values = torch.randn(len(llama.layers), llama.d_model, generator=generator)
    changes = [FeedForwardValue(at.index, values[i]) for i, at in enumerate(llama.layers)]
    found = run_copies(llama, ids, changes).states[0]
    for i, at in enumerate(llama.layers):

        def replaced(_, __, output, value=values[i]):
            output = output.clone()
            output[:, -1] = value
            return output

        with at.block.mlp.register_forward_hook(replaced):
            expected = capture(llama, ids, layers=[]).final[0, -1]
        assert worst(found[i], expected) < 1e-4


def test_several_heads_of_a_layer_change_in_one_copy(llama, ids):
    value = torch.randn(3, llama.layers[1].d_head, generator=torch.Generator().manual_seed(1))
    changes = [HeadsValue(1, (0, 2, 5), value)]
    expected = states_by_whole_runs(llama, ids, changes)
    assert worst(run_copies(llama, ids, changes).states[0], expected) < 1e-4


def test_each_prompt_can_have_its_own_value(llama):
    rows = torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(1))
    value = torch.randn(2, 1, llama.layers[0].d_head, generator=torch.Generator().manual_seed(4))
    for method in ("joined", "batch"):
        found = run_copies(llama, rows, [HeadsValue(1, (3,), value)], method=method).states
        for row in range(2):
            one = [HeadsValue(1, (3,), value[row])]
            expected = states_by_whole_runs(llama, rows[row : row + 1], one)
            assert worst(found[row], expected) < 1e-4


def test_a_text_of_one_token_has_no_prefix(llama):
    one, changes = torch.tensor([[7]]), some_changes(llama)
    expected = states_by_whole_runs(llama, one, changes)
    assert worst(run_copies(llama, one, changes).states[0], expected) < 1e-4


def test_many_copies_are_split_over_passes(llama, ids, monkeypatch):
    changes = some_changes(llama)
    whole = run_copies(llama, ids, changes, keep=True)
    monkeypatch.setattr(copies, "MOST_COPIES", 5)
    parts = run_copies(llama, ids, changes, keep=True)
    assert worst(parts.states, whole.states) < 1e-4
    for layer in whole.copies:
        assert worst(parts.copies[layer], whole.copies[layer]) < 1e-4


def test_a_copy_runs_through_the_layers_after_its_change_only(llama, ids):
    widths = []
    with llama.layers[0].block.self_attn.register_forward_pre_hook(
        lambda _, __, kwargs: widths.append(kwargs["hidden_states"].shape[1]), with_kwargs=True
    ):
        run_copies(llama, ids, [each for each in some_changes(llama) if each.layer > 0])
    assert widths == [N_TOKENS + 1]  # the prompt, and the copy that changes nothing


def hooks_of(model: LanguageModel) -> list[int]:
    return [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.hf.modules()]


def test_nothing_is_left_behind(llama, ids):
    before, hooks = dict(AttentionInterface._global_mapping), hooks_of(llama)
    run_copies(llama, ids, some_changes(llama), attention=True)
    run_copies(llama, ids, some_changes(llama), method="batch")
    assert before == AttentionInterface._global_mapping
    assert hooks == hooks_of(llama)


def test_a_pass_that_changes_the_unchanged_copy_is_not_used(llama, ids, monkeypatch):
    """As with a family whose attention needs more than the interface passes on."""
    expected = run_copies(llama, ids, some_changes(llama)).states
    right = joined_pass._scores
    monkeypatch.setattr(
        joined_pass, "_scores", lambda *given: tuple(each * 1.5 for each in right(*given))
    )
    run = run_copies(llama, ids, some_changes(llama))
    assert run.method == "batch"
    assert worst(run.states, expected) < 1e-4


def test_a_model_under_intervention_is_run_in_slower_ways(llama, ids):
    changes = [HeadsValue(2, (1,), torch.zeros(1, llama.layers[2].d_head))]
    with intervene(llama, Ablate(0, 3)):
        found = run_copies(llama, ids, changes)
    with intervene(llama, [Ablate(0, 3), Ablate(2, 1, positions=[N_TOKENS - 1])]):
        expected = capture(llama, ids, layers=[]).final[0, -1]
    assert found.method != "joined"
    assert worst(found.states[0, 0], expected) < 1e-4


def test_a_block_that_norms_the_stream_has_no_feed_forward_part(ids):
    model = wrap_model(tiny("llama"), None, name="llama")
    from dataclasses import replace

    layers = tuple(replace(at, reaches_stream=False) for at in model.layers)
    model = replace(model, layers=layers)
    assert run_copies(model, ids, []).feed_forward == {}
    with pytest.raises(ModelError, match="norms the stream itself"):
        run_copies(model, ids, [FeedForwardValue(0, torch.zeros(model.d_model))])
