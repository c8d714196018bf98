"""Judged against hooks made by hand, and against columns of the projection set to zero."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from families import tiny
from torch import nn
from torch.testing import assert_close

from saccade.interp.heads.capture import capture, head_outputs, output_matrix
from saccade.interp.heads.intervene import (
    Ablate,
    InjectHead,
    InjectResidual,
    Patch,
    Scale,
    intervene,
    mean_z,
)
from saccade.interp.heads.residual_path import direct_logits

# float32 sums in another order; the numbers are of size 1.
CLOSE = {"atol": 2e-5, "rtol": 2e-4}
LAYER, HEAD = 1, 2


@torch.no_grad()
def logits(model, ids, mask=None):
    given = {} if mask is None else {"attention_mask": mask.long()}
    return model.hf(input_ids=ids, use_cache=False, **given).logits


@contextmanager
def by_hand(model, layer, change, *, head=HEAD):
    """A hook that does only what one test needs: ``change`` rewrites a head's [row, d_head]."""
    at = model.layer(layer)

    def hook(_: nn.Module, args):
        z = args[0].clone()
        flat = z.view(-1, at.n_heads, at.d_head)
        flat[:, head] = change(flat[:, head])
        return (z, *args[1:])

    with at.projection.register_forward_pre_hook(hook):
        yield


def n_hooks(model):
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._forward_hooks_always_called)
        for m in model.hf.modules()
    )


def vector(width, seed=5):
    return torch.randn(width, generator=torch.Generator().manual_seed(seed))


def test_zero_ablation_is_the_projection_without_the_heads_columns(model, ids):
    at = model.layer(LAYER)
    with intervene(model, Ablate(LAYER, HEAD)):
        found = logits(model, ids)
    weight = at.projection.weight
    kept = weight.detach().clone()
    columns = slice(HEAD * at.d_head, (HEAD + 1) * at.d_head)
    with torch.no_grad():
        if type(at.projection).__name__ == "Conv1D":
            weight[columns] = 0
        else:
            weight[:, columns] = 0
        expected = logits(model, ids)
        weight.copy_(kept)
    assert_close(found, expected, **CLOSE)
    assert not torch.allclose(found, logits(model, ids), **CLOSE)


def test_scaling_is_what_a_hook_by_hand_does(model, ids):
    with intervene(model, Scale(LAYER, HEAD, -1.7)):
        found = logits(model, ids)
    with by_hand(model, LAYER, lambda z: -1.7 * z):
        assert_close(found, logits(model, ids), **CLOSE)


def test_a_mean_ablated_head_holds_its_mean_everywhere(model, ids):
    mean = mean_z(model, ids)[LAYER]
    captured = capture(model, ids).z[LAYER]
    # The first token of a text is left out: attention rests on it.
    assert_close(mean, captured[:, 1:].flatten(0, 1).mean(0), **CLOSE)
    with intervene(model, Ablate(LAYER, HEAD, by="mean", value=mean[HEAD])):
        found, inside = logits(model, ids), capture(model, ids).z[LAYER]
    with by_hand(model, LAYER, mean[HEAD].expand_as):
        assert_close(found, logits(model, ids), **CLOSE)
    assert_close(inside[:, :, HEAD], mean[HEAD].expand(*ids.shape, -1))


def test_every_layer_patched_whole_gives_the_other_texts_logits(model, ids):
    other = ids.flip(0)
    source = capture(model, other).z
    at = model.layers[-1]
    patches = [Patch(at.index, h, source[at.index][:, :, h]) for h in range(at.n_heads)]
    with intervene(model, patches):
        patched = capture(model, ids, residual=True)
    assert_close(patched.z[at.index], source[at.index])


def test_what_a_head_writes_can_be_added_to_in_the_stream_or_before_the_projection(model, ids):
    at = model.layer(LAYER)
    into_z = vector(at.d_head)
    written = into_z @ output_matrix(at)[HEAD]
    with intervene(model, InjectHead(LAYER, HEAD, into_z, 1.3)):
        found = logits(model, ids)
    with intervene(model, InjectHead(LAYER, HEAD, written, 1.3)):
        assert_close(found, logits(model, ids), atol=1e-4, rtol=1e-3)
    with by_hand(model, LAYER, lambda z: z + 1.3 * into_z):
        assert_close(found, logits(model, ids), **CLOSE)


def test_the_stream_is_added_to_after_the_block(model, ids):
    push = vector(model.unembedding.weight.shape[1])

    def hook(_: nn.Module, __, output):
        stream = output if isinstance(output, torch.Tensor) else output[0]
        stream += 0.9 * push  # in place, so that the form of the output does not matter

    with intervene(model, InjectResidual(LAYER, push, 0.9)):
        found = logits(model, ids)
    with model.layer(LAYER).block.register_forward_hook(hook):
        assert_close(found, logits(model, ids), **CLOSE)


def test_a_change_at_one_position_leaves_the_earlier_ones_alone(model, ids):
    before = logits(model, ids)
    with intervene(model, Ablate(LAYER, HEAD, positions=[6])) as touched:
        after = logits(model, ids)
    assert touched[0].tokens == len(ids)
    assert_close(after[:, :6], before[:, :6], **CLOSE)
    assert not torch.allclose(after[:, 6], before[:, 6], **CLOSE)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_text_is_changed_at_the_same_tokens_as_alone(model, ids, side):
    short = 7
    pad = torch.zeros(1, ids.shape[1] - short, dtype=torch.long)
    row = [pad, ids[:1, :short]] if side == "left" else [ids[:1, :short], pad]
    together = torch.cat([torch.cat(row, 1), ids[1:]])
    mask = torch.ones(together.shape, dtype=torch.bool)
    real = slice(ids.shape[1] - short, None) if side == "left" else slice(short)
    mask[0] = False
    mask[0, real] = True
    changes = [
        Ablate(LAYER, HEAD, positions=[1, -1]),
        InjectHead(0, 0, vector(model.layer(0).d_head), 2.0, positions=[-2]),
    ]
    with intervene(model, changes) as touched:
        found = capture(model, together, mask=mask)
    assert [each.tokens for each in touched] == [4, 2]
    with intervene(model, changes):
        alone = capture(model, ids[:1, :short])
    expected, padded = alone.z[LAYER][0, :, HEAD], found.z[LAYER][0, real, HEAD]
    assert (padded == 0).all(-1).nonzero()[:, 0].tolist() == [1, short - 1]
    # Without positions of their own given to the model, left padding moves learned positions.
    if side == "right" or model.name not in ("gpt2", "gpt_neo", "gptj"):
        assert_close(padded, expected, **CLOSE)


def test_rows_of_a_batch_are_changed_apart(model, ids):
    many = ids[:1].repeat(4, 1)
    changes = [Ablate(LAYER, 0, rows=[1]), Scale(LAYER, HEAD, 3.0, rows=[1, 3], positions=[2])]
    with intervene(model, changes):
        found = logits(model, many)
    plain = logits(model, ids[:1])[0]
    with intervene(model, changes[0]):
        both = logits(model, many)[1]
    assert_close(found[[0, 2]], plain.expand(2, -1, -1), **CLOSE)
    with intervene(model, Scale(LAYER, HEAD, 3.0, positions=[2])):
        assert_close(found[3], logits(model, ids[:1])[0], **CLOSE)
    assert not torch.allclose(found[1], both, **CLOSE)
    assert not torch.allclose(found[1], found[3], **CLOSE)


def generated(model, ids, mask=None, **options):
    return model.hf.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids) if mask is None else mask.long(),
        max_new_tokens=9,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )


def test_generation_with_a_cache_is_generation_without_one(model, ids):
    """Positions are those of the whole text: prompt, first new token, and one later."""
    n = ids.shape[1]
    changes = [
        Scale(LAYER, HEAD, -2.0),
        Ablate(0, 1, positions=[3, n, n + 2]),
        InjectResidual(0, vector(model.unembedding.weight.shape[1]), positions=[2, n + 1]),
    ]
    plain = generated(model, ids)
    with intervene(model, changes) as touched:
        cached = generated(model, ids, use_cache=True)
    assert [each.tokens for each in touched] == [2 * (n + 8), 2 * 3, 2 * 2]
    with intervene(model, changes):
        whole = generated(model, ids, use_cache=False)
    assert_close(cached.logits, whole.logits, atol=1e-4, rtol=1e-3)
    assert torch.equal(cached.sequences, whole.sequences)
    assert not torch.equal(cached.sequences, plain.sequences)


def test_while_generating_negative_positions_count_from_the_end_of_the_prompt(model, ids):
    mask = torch.ones(ids.shape, dtype=torch.bool)
    mask[0, :4] = False  # its prompt has 7 tokens: -2 is the token 5; the other's is the token 9
    push = vector(model.layer(LAYER).d_head)
    with intervene(model, InjectHead(LAYER, HEAD, push, 4.0, positions=[-2])) as touched:
        found = generated(model, ids, mask)
    assert touched[0].tokens == 2
    apart = [
        InjectHead(LAYER, HEAD, push, 4.0, positions=[5], rows=[0]),
        InjectHead(LAYER, HEAD, push, 4.0, positions=[9], rows=[1]),
    ]
    with intervene(model, apart):
        expected = generated(model, ids, mask)
    assert_close(found.logits, expected.logits, **CLOSE)


def test_a_cache_that_the_model_made_itself_is_known_again(llama, ids):
    with intervene(llama, Ablate(LAYER, HEAD, positions=[-1])) as touched, torch.no_grad():
        first = llama.hf(input_ids=ids, use_cache=True)
        assert touched[0].tokens == 2
        llama.hf(input_ids=ids[:, :1], past_key_values=first.past_key_values)
        assert touched[0].tokens == 2


def test_changes_of_one_head_are_made_in_their_order(llama, ids):
    at = llama.layer(LAYER)
    push, wide = vector(at.d_head), vector(48)
    inject, injected = InjectHead(LAYER, HEAD, push), InjectHead(LAYER, HEAD, wide)
    double, silence = Scale(LAYER, HEAD, 2.0), Ablate(LAYER, HEAD)
    with intervene(llama, [inject, injected, double]):
        found = logits(llama, ids)
    with (
        intervene(llama, [double, InjectHead(LAYER, HEAD, push, 2.0)]),
        intervene(llama, InjectHead(LAYER, HEAD, wide, 2.0)),
    ):
        assert_close(found, logits(llama, ids), **CLOSE)
    with intervene(llama, [inject, injected, silence]):
        assert_close(silenced := logits(llama, ids), silenced)
    with intervene(llama, silence):
        assert_close(silenced, logits(llama, ids), **CLOSE)
    with intervene(llama, [silence, injected]):
        assert not torch.allclose(silenced, logits(llama, ids), **CLOSE)


def test_blocks_nest_and_the_outer_one_goes_on_alone(llama, ids):
    outer, inner = InjectHead(LAYER, HEAD, vector(48)), Ablate(LAYER, HEAD)
    with intervene(llama, outer):
        first = logits(llama, ids)
        with intervene(llama, inner):
            both = logits(llama, ids)
        assert_close(logits(llama, ids), first)
    with intervene(llama, inner):
        assert_close(logits(llama, ids), both, **CLOSE)  # what was injected was ablated too


def test_nothing_is_left_behind_after_an_error_or_at_the_end(model, ids):
    before, plain = n_hooks(model), logits(model, ids)

    def fail():
        with intervene(model, Ablate(LAYER, HEAD)), intervene(model, Scale(0, 1, 2.0)):
            logits(model, ids)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail()
    assert n_hooks(model) == before
    assert_close(logits(model, ids), plain)
    with intervene(model, [Ablate(LAYER, HEAD), InjectResidual(0, vector(model.d_model))]):
        logits(model, ids)
    assert n_hooks(model) == before


def test_a_pass_that_fails_inside_does_not_confuse_the_next_one(llama, ids):
    def fail(*_):
        raise RuntimeError("in the middle")

    with intervene(llama, InjectHead(LAYER, HEAD, vector(48))):
        with (
            llama.layer(LAYER).projection.register_forward_hook(fail),
            pytest.raises(RuntimeError, match="in the middle"),
        ):
            logits(llama, ids)
        found = logits(llama, ids)
    with intervene(llama, InjectHead(LAYER, HEAD, vector(48))):
        assert_close(found, logits(llama, ids))


def test_what_a_head_writes_is_computed_as_ever_inside_a_block(llama, ids):
    captured = capture(llama, ids, residual=True)
    at = llama.layer(LAYER)
    expected = head_outputs(at, captured.z[LAYER]), direct_logits(llama, captured, LAYER, ids)
    with intervene(llama, Ablate(LAYER, HEAD)):
        assert_close(head_outputs(at, captured.z[LAYER]), expected[0])
        assert_close(direct_logits(llama, captured, LAYER, ids), expected[1])
        capture(llama, ids)


def test_captures_and_hugging_faces_own_hidden_states_show_the_change(llama, ids):
    push = vector(48)
    plain = capture(llama, ids, residual=True)
    with intervene(llama, [Ablate(LAYER, HEAD), InjectResidual(0, push)]), torch.no_grad():
        found = capture(llama, ids, residual=True)
        states = llama.hf(input_ids=ids, output_hidden_states=True).hidden_states
    assert (found.z[LAYER][:, :, HEAD] == 0).all()
    assert_close(found.residual[0], plain.residual[0] + push, **CLOSE)
    assert_close(states[1], found.residual[0], **CLOSE)


def test_gradients_flow_through_a_change(llama, ids):
    push = vector(llama.layer(LAYER).d_head).requires_grad_()
    with intervene(llama, InjectHead(LAYER, HEAD, push)):
        llama.hf(input_ids=ids).logits.square().sum().backward()
    assert push.grad is not None and push.grad.abs().sum() > 0


def test_half_precision_models_take_single_precision_vectors(ids):
    from copy import deepcopy

    from saccade.interp.heads.model import wrap_model

    half = wrap_model(deepcopy(tiny("llama")).bfloat16(), None, name="half")
    with intervene(half, InjectHead(LAYER, HEAD, vector(48))):
        assert logits(half, ids).dtype == torch.bfloat16


def test_a_mean_over_batches_counts_every_real_token_once(llama, ids):
    mask = torch.ones(ids.shape, dtype=torch.bool)
    mask[1, 5:] = False
    found = mean_z(llama, ids, mask=mask)
    parts = mean_z(llama, [ids[:1], ids[1:, :5]])
    for layer in found:
        assert_close(found[layer], parts[layer], **CLOSE)


def test_a_mask_that_a_hook_of_the_users_adds_says_where_the_texts_begin(llama, ids):
    mask = torch.ones_like(ids)
    mask[:, :4] = 0

    def with_mask(_: nn.Module, args, kwargs):
        return args, {**kwargs, "attention_mask": mask}

    change = Ablate(LAYER, HEAD, positions=[1])
    with intervene(llama, change):
        expected = logits(llama, ids, mask)
    with (
        llama.hf.model.register_forward_pre_hook(with_mask, with_kwargs=True),
        intervene(llama, change),
    ):
        assert_close(logits(llama, ids), expected, **CLOSE)


def test_what_a_failed_pass_was_to_add_is_not_added_to_a_later_one(llama, ids):
    def fail(*_):
        raise RuntimeError("before the projection")

    def run_and_fail():
        with (
            intervene(llama, InjectHead(LAYER, HEAD, vector(48))),
            llama.layer(LAYER).projection.register_forward_pre_hook(fail),
        ):
            logits(llama, ids)

    with intervene(llama, Ablate(0, 1)):
        expected = logits(llama, ids)
        with pytest.raises(RuntimeError, match="before the projection"):
            run_and_fail()
        assert_close(logits(llama, ids), expected)
