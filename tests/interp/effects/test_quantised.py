"""Effects in models whose weights are no dense parameters: quantised, or kept elsewhere."""

import copy
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "heads"))  # families.py is beside its tests

from families import VOCAB, tiny


class EightBit(nn.Module):
    """A linear layer with weights of 8 bits and a scale a row, as weight-only quantisation has."""

    def __init__(self, dense: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = dense.in_features, dense.out_features
        scale = dense.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (dense.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.bias = dense.bias

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


@pytest.fixture
def hf():
    return copy.deepcopy(tiny("llama"))


@pytest.fixture
def ids():
    return torch.randint(VOCAB, (1, 11), generator=torch.Generator().manual_seed(3))


def kl_of_every_head(hf, ids):
    """One whole run a head, its slice of the projection's input set to zero."""
    config, found = hf.config, []
    d_head = hf.model.layers[0].self_attn.o_proj.in_features // config.num_attention_heads
    with torch.no_grad():
        plain = hf(ids).logits[0, -1].log_softmax(-1)
        for block in hf.model.layers:
            for head in range(config.num_attention_heads):

                def without(_, args, head=head):
                    changed = args[0].clone()
                    changed[:, -1, head * d_head : (head + 1) * d_head] = 0
                    return (changed, *args[1:])

                handle = block.self_attn.o_proj.register_forward_pre_hook(without)
                other = hf(ids).logits[0, -1].log_softmax(-1)
                handle.remove()
                found.append(float((plain.exp() * (plain - other)).sum()))
    return torch.tensor(found)


def effects(hf, ids):
    from saccade.interp.effects.effects import measure_effects
    from saccade.interp.effects.replacement import Replacement
    from saccade.interp.heads.model import wrap_model

    model = wrap_model(hf, None, name="changed")
    model._shown.update({id_: f"<{id_}>" for id_ in range(VOCAB)})  # no tokenizer
    (found,) = measure_effects(model, ids, replacement=Replacement.zero(model)).effects
    return torch.tensor([each.kl for each in found.parts.values()])


def test_effects_of_a_model_with_weights_of_eight_bits_are_those_of_whole_runs(hf, ids):
    dense = {n: each for n, each in hf.model.named_modules() if isinstance(each, nn.Linear)}
    for name, module in dense.items():
        parent, _, leaf = name.rpartition(".")
        setattr(hf.model.get_submodule(parent), leaf, EightBit(module))
    torch.testing.assert_close(effects(hf, ids), kl_of_every_head(hf, ids), rtol=1e-3, atol=1e-7)


def test_effects_of_a_model_whose_weights_are_fetched_for_each_layer_are_those_of_whole_runs(
    hf, ids
):
    from accelerate import cpu_offload

    expected = kl_of_every_head(hf, ids)
    away = cpu_offload(hf, execution_device=torch.device("cpu"))
    assert away.model.layers[0].self_attn.o_proj.weight.device.type == "meta"
    torch.testing.assert_close(effects(away, ids), expected, rtol=1e-3, atol=1e-7)


def test_a_projection_that_rounds_its_input_is_refused(hf, ids):
    """Its output is no sum over heads: each row is rounded to a scale of its own."""
    from saccade.errors import ModelError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch names its successor
        rounded = torch.ao.quantization.quantize_dynamic(hf, {nn.Linear}, dtype=torch.qint8)
    with pytest.raises(ModelError, match="should sum to its output"):
        effects(rounded, ids)
