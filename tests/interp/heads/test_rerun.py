"""Running a model again from one layer on gives what the whole model gives."""

import pytest
import torch

from saccade.interp.heads.capture import capture
from saccade.interp.heads.intervene import Ablate, intervene
from saccade.interp.heads.rerun import Rerun


def worst(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def test_a_removed_head_ends_where_an_intervention_on_the_whole_model_ends(model, ids):
    for at in (model.layers[0], model.layers[-1]):
        rerun = Rerun.record(model, ids, at.index)
        head = at.n_heads - 1
        z = rerun.z.clone()
        z[:, :, head] = 0.0
        with intervene(model, Ablate(at.index, head, by="zero")):
            expected = capture(model, ids, layers=[]).final
        assert worst(rerun.with_heads(z), expected) < 1e-4
        assert worst(rerun.with_heads(rerun.z), rerun.final) < 1e-4


def test_only_the_later_layers_run(llama, ids):
    rerun = Rerun.record(llama, ids, 2)
    ran = []
    hooks = [
        at.block.register_forward_hook(lambda *_, index=at.index: ran.append(index))
        for at in llama.layers
    ]
    rerun.with_heads(rerun.z)
    for hook in hooks:
        hook.remove()
    assert rerun.is_short
    assert ran == [2]


def test_a_family_that_does_more_between_its_blocks_is_run_whole(llama, ids):
    """As if the second block read more than the stream: what it is given cannot be replayed."""

    fresh = []

    def shift(_, args):
        # Only after the embeddings ran, as they do in a run of the whole model.
        return (args[0] + fresh.pop(), *args[1:]) if fresh else None

    first = llama.hf.get_input_embeddings().register_forward_hook(lambda *_: fresh.append(0.5))
    second = llama.layers[1].block.register_forward_pre_hook(shift)
    with first, second:
        rerun = Rerun.record(llama, ids, 0)
        again = rerun.with_heads(rerun.z)
    assert not rerun.is_short
    assert worst(again, rerun.final) < 1e-4


def test_no_hook_stays_behind(llama, ids):
    def hooks():  # transformers has some of its own
        return [[*each._forward_hooks, *each._forward_pre_hooks] for each in llama.hf.modules()]

    Rerun.record(llama, ids, 1)
    before = hooks()
    rerun = Rerun.record(llama, ids, 1)
    with pytest.raises(RuntimeError):
        rerun.with_heads(rerun.z[:, :3])
    assert hooks() == before
