"""Recurrent loops with their gradients by hand, against the same loops on torch's tape."""

import pytest
import torch

from saccade.zoo.attention.attend import Attention
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.cells.cell import weights_of
from saccade.zoo.cells.gru import AttentionGru, GruCell
from saccade.zoo.cells.unitary import UnitaryCell, modrelu
from saccade.zoo.fast.forms import plain_forms
from saccade.zoo.fast.recurrence import AttendingGruWeights, attending_gru
from saccade.zoo.fast.soft_attention import StepMemory
from saccade.zoo.models.bahdanau import BahdanauTranslator

BATCH, KEYS, POS, D_INPUT, D_HIDDEN, D_VALUE, D_SCORE = 3, 5, 7, 11, 13, 17, 19


def by_hand(inputs, memory, hidden, *, attention, cell, context_weight):
    own, score = weights_of(cell.kernel), attention.score
    weights = AttendingGruWeights(
        own.of_state,
        own.state_bias,
        context_weight,
        score.query_proj.weight,
        score.score_proj.weight,
    )
    projected = cell.project(inputs.transpose(0, 1))
    return attending_gru(projected, StepMemory(*memory), hidden, weights=weights)


def by_autograd(inputs, memory, hidden, *, attention, cell, context_weight):
    states, contexts = [], []
    for word in cell.project(inputs).unbind(1):
        with plain_forms():
            context = attention(hidden[:, None], memory).context[:, 0]
        hidden = cell.advance(word + context @ context_weight.T, hidden).output
        states.append(hidden)
        contexts.append(context)
    return torch.stack(states, 1), torch.stack(contexts, 1)


def leaves(scale=1.0):
    torch.manual_seed(0)
    score = AdditiveScore(d_query=D_HIDDEN, d_key=D_VALUE, d_hidden=D_SCORE)
    parts = {"attention": Attention(score, SoftSelect()), "cell": GruCell(D_INPUT, D_HIDDEN)}
    modules = torch.nn.ModuleDict(parts).double()
    for weight in modules.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    sizes = ((BATCH, POS, D_INPUT), (BATCH, D_HIDDEN), (BATCH, KEYS, D_VALUE))
    inputs, hidden, keys = (scale * torch.randn(size).double() for size in sizes)
    context_weight = torch.randn(3 * D_HIDDEN, D_VALUE).double()
    given = [each.requires_grad_() for each in (inputs, hidden, keys, context_weight)]
    return modules, given


def run(function, modules, given):
    inputs, hidden, keys, context_weight = given
    mask = torch.arange(KEYS) < torch.tensor([5, 3, 1])[:, None]
    memory = modules["attention"].remember(keys, mask=mask)
    found = function(inputs, memory, hidden, **dict(modules.items()), context_weight=context_weight)
    torch.manual_seed(1)
    gradients = [torch.randn(each.shape).double() for each in found]
    return found, torch.autograd.grad(found, [*given, *modules.parameters()], gradients)


def test_states_contexts_and_every_gradient_are_those_of_the_plain_loop():
    modules, given = leaves()
    found, slopes = run(by_hand, modules, given)
    wanted, wanted_slopes = run(by_autograd, modules, given)
    torch.testing.assert_close(tuple(found), wanted)
    for slope, right in zip(slopes, wanted_slopes, strict=True):
        torch.testing.assert_close(slope, right)


def test_very_large_numbers_give_no_nan():
    modules, given = leaves(scale=1e3)
    _, slopes = run(by_hand, modules, given)
    assert all(slope.isfinite().all() for slope in slopes)


def test_both_forms_of_a_translators_loop_agree(assert_forms_agree):
    torch.manual_seed(2)
    sizes = {"d_embed": D_INPUT, "d_hidden": D_HIDDEN}
    model = BahdanauTranslator(n_source=23, n_target=29, **sizes).double().eval()
    words, hidden, keys = (
        torch.randn(size).double().requires_grad_()
        for size in ((BATCH, POS, D_INPUT), (BATCH, D_HIDDEN), (BATCH, KEYS, 2 * D_HIDDEN))
    )
    mask = torch.arange(KEYS) < torch.tensor([5, 3, 1])[:, None]

    def decode(words, hidden, keys, *_):
        memory = model.attention.remember(keys, mask=mask)
        return tuple(model.attend_and_update(words, memory, hidden))

    learnt = [*model.attention.parameters(), *model.decoder.parameters()]
    assert_forms_agree(decode, [words, hidden, keys, *learnt, *model.context_proj.parameters()])


def test_both_forms_of_the_attention_gru_agree(assert_forms_agree):
    torch.manual_seed(3)
    cell = AttentionGru(d_input=D_INPUT, d_hidden=D_HIDDEN).double()
    facts = torch.randn(BATCH, POS, D_INPUT).double().requires_grad_()
    weights = torch.rand(BATCH, POS).double().requires_grad_()
    assert_forms_agree(
        lambda facts, weights, *_: cell(cell.project(facts), weights),
        [facts, weights, *cell.parameters()],
    )


@pytest.mark.parametrize("bias", [0.4, -0.6], ids=["all live", "some are cut"])
def test_both_forms_of_modrelu_agree(bias, assert_forms_agree):
    torch.manual_seed(4)
    total = torch.randn(BATCH, 2 * D_HIDDEN).double().requires_grad_()
    bias = torch.full((D_HIDDEN,), bias).double().requires_grad_()
    assert (modrelu(total, bias) == 0).any() == (bias[0] < 0)
    assert_forms_agree(modrelu, [total, bias])


def test_both_forms_of_a_unitary_network_agree(assert_forms_agree):
    torch.manual_seed(5)
    cell = UnitaryCell(D_INPUT, 2 * D_HIDDEN).double()
    torch.nn.init.normal_(cell.bias, std=0.1)
    inputs = torch.randn(BATCH, POS, D_INPUT).double().requires_grad_()
    assert_forms_agree(lambda inputs, *_: cell.unroll(inputs).outputs, [inputs, *cell.parameters()])
