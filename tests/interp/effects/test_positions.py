"""Rows that join the batch at the layer they change end where an intervened model ends."""

import pytest
import torch
from families import VOCAB

from saccade.errors import UsageError
from saccade.interp.effects.positions import HeadAt, Row, RowChange, position_effects, run_rows
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, intervene

AT = (4, 10)


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def ablated(model, ids, layer, head, value, positions, prompt=0):
    """The final state of an intervened run of the whole model."""
    change = Ablate(layer, head, "mean", value, positions=positions, rows=[prompt])
    with intervene(model, change):
        return capture(model, ids, layers=[]).final[prompt, list(AT)]


@pytest.mark.parametrize("positions", [None, [3], [2, 4]])
def test_a_row_ends_where_an_intervention_on_the_whole_model_ends(
    model, ids, replacement, positions
):
    values = replacement(model).heads
    last = model.layers[-1].index
    places = None if positions is None else tuple(positions)
    rows = [
        Row((RowChange(layer, (head,), values[layer][[head]], places),), prompt)
        for layer, head, prompt in [(last, 2, 0), (0, 1, 1), (1, 0, 0)]
    ]
    run = run_rows(model, ids, rows, at=AT)
    expected = [
        ablated(model, ids, layer, head, values[layer][head], positions, prompt)
        for layer, head, prompt in [(last, 2, 0), (0, 1, 1), (1, 0, 0)]
    ]
    assert worst(run.states, torch.stack(expected)) < 1e-4
    assert worst(run.plain, capture(model, ids, layers=[]).final[:, list(AT)]) < 1e-4


def test_both_ways_give_the_same_states_and_activations(model, ids, replacement):
    values = replacement(model).heads
    last = model.layers[-1].index
    rows = [
        Row((RowChange(layer, (0, 2), values[layer][[0, 2]], (1, 3)),)) for layer in (last, 0, 1)
    ]
    joined, whole = (
        run_rows(model, ids[:1], rows, at=AT, keep=[1, last], method=method)
        for method in ("joined", "whole")
    )
    assert worst(joined.states, whole.states) < 1e-4
    for layer in (1, last):
        assert worst(joined.z[layer], whole.z[layer]) < 1e-4


def test_most_families_join(wrapped, ids, replacement):
    slow = set()
    for family in ("gpt2", "llama", "gemma2", "opt", "falcon", "bloom", "mixtral", "cohere"):
        model = wrapped(family)
        row = Row((RowChange(1, (0,), replacement(model).heads[1][[0]]),))
        if run_rows(model, ids[:1], [row], at=AT).method != "joined":
            slow.add(family)
    assert slow <= {"bloom"}, "ALiBi with batch and heads in one axis"


def test_several_changes_of_one_row_are_made_together(llama, ids, replacement):
    values = replacement(llama).heads
    changes = [RowChange(2, (4,), values[2][[4]], (5,)), RowChange(0, (1,), values[0][[1]], (-9,))]
    run = run_rows(llama, ids, [Row(tuple(changes), 1)], at=AT)
    both = [
        Ablate(2, 4, "mean", values[2][4], positions=[5], rows=[1]),
        Ablate(0, 1, "mean", values[0][1], positions=[2], rows=[1]),
    ]
    with intervene(llama, both):
        expected = capture(llama, ids, layers=[]).final[1, list(AT)]
    assert worst(run.states[0], expected) < 1e-4


def test_rows_of_several_passes_come_back_in_their_order(llama, ids, replacement, monkeypatch):
    values = replacement(llama).heads
    rows = [
        Row((RowChange(layer, (head,), values[layer][[head]], (head,)),))
        for head in range(6)
        for layer in (2, 0, 1)
    ]
    at_once = run_rows(llama, ids, rows, at=AT, keep=[1])
    monkeypatch.setattr("saccade.interp.effects.positions.MOST_TOKENS", 7 * ids.shape[1])
    in_parts = run_rows(llama, ids, rows, at=AT, keep=[1])
    assert worst(in_parts.states, at_once.states) < 1e-5
    assert worst(in_parts.z[1], at_once.z[1]) < 1e-5


def test_a_run_up_to_a_layer_keeps_its_activations_and_runs_no_other(llama, ids, replacement):
    values = replacement(llama).heads
    rows = [
        Row((RowChange(0, (3,), values[0][[3]], (2,)),)),
        Row((RowChange(2, (0,), values[2][[0]]),)),
    ]
    ran = []
    hooks = [
        at.block.register_forward_pre_hook(lambda *_, index=at.index: ran.append(index))
        for at in llama.layers
    ]
    run = run_rows(llama, ids, rows, at=AT, keep=[1], until=1)
    for hook in hooks:
        hook.remove()
    assert ran == [0, 1]
    assert run.states.shape[:2] == (2, 0)
    assert worst(run.z[1], run_rows(llama, ids, rows, at=AT, keep=[1]).z[1]) < 1e-5


@pytest.mark.parametrize("until", [None, 1])
def test_a_model_whose_blocks_treat_rows_apart_is_run_whole(llama, ids, replacement, until):
    def shift(_, args):  # only in the first row of a batch
        return (torch.cat([args[0][:1] + 0.5, args[0][1:]]),)

    row = Row((RowChange(1, (0,), replacement(llama).heads[1][[0]]),))
    with llama.layers[0].block.input_layernorm.register_forward_pre_hook(shift):
        run = run_rows(llama, ids[:1], [row], at=AT, keep=[1], until=until)
    assert run.method == "whole"


def test_effects_are_kl_and_loss_of_the_score(llama, ids, replacement):
    values, target = replacement(llama), Target(7, 11)
    heads = [HeadAt(1, 3, (2,)), HeadAt(0, 5, None), HeadAt(2, 0, (10,))]
    found = position_effects(llama, ids[1:], heads, replacement=values, target=target, at=-1)
    plain = llama.hf(ids[1:]).logits[0, -1].log_softmax(-1)
    for each in heads:
        change = Ablate(each.layer, each.head, "mean", values.heads[each.layer][each.head],
                        positions=each.positions and list(each.positions))  # fmt: skip
        with intervene(llama, change):
            changed = llama.hf(ids[1:]).logits[0, -1].log_softmax(-1)
        fallen = (plain[7] - plain[11]) - (changed[7] - changed[11])
        assert found[each].on_token == pytest.approx(float(fallen), abs=1e-4)
        kl = float((plain.exp() * (plain - changed)).sum())
        assert found[each].kl == pytest.approx(kl, abs=1e-4)


def test_a_change_leaves_earlier_predictions_alone(model, ids, replacement):
    values = replacement(model).heads[1]
    run = run_rows(model, ids, [Row((RowChange(1, (2,), values[[2]], (6,)),), 1)], at=range(11))
    assert worst(run.states[0, :6], run.plain[1, :6]) < 1e-4
    assert worst(run.states[0, 6:], run.plain[1, 6:]) > 1e-3


def test_a_value_for_each_position_goes_to_its_position(llama, ids):
    values = torch.randn(2, 1, 10, generator=torch.Generator().manual_seed(2))
    run = run_rows(llama, ids, [Row((RowChange(0, (2,), values, (3, 8)),))], at=AT)
    change = Ablate(0, 2, "resample", values[:, 0], positions=[3, 8], rows=[0])
    with intervene(llama, change):
        expected = capture(llama, ids, layers=[]).final[0, list(AT)]
    assert worst(run.states[0], expected) < 1e-4


def test_a_position_outside_the_text_is_refused(llama, ids, replacement):
    head = HeadAt(0, 0, (1,))
    with pytest.raises(UsageError, match="no position 11: the text has 11 tokens"):
        position_effects(llama, ids[:1], [head], replacement=replacement(llama), at=11)
    with pytest.raises(UsageError, match="no position 40"):
        position_effects(llama, ids[:1], [HeadAt(0, 0, (40,))], replacement=replacement(llama))


def test_the_vocabulary_of_the_tiny_models_is_the_tests_own(llama):
    assert llama.d_vocab == VOCAB
