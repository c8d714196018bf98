"""The gradient by hand is autograd's."""

import torch

from saccade.zoo.attention.attend import Attention
from saccade.zoo.attention.scores import AdditiveScore
from saccade.zoo.attention.select import SoftSelect
from saccade.zoo.cells.attending_gru import attending_gru
from saccade.zoo.cells.gru import GruCell

BATCH, KEYS, POS, D_INPUT, D_HIDDEN, D_VALUE, D_SCORE = 3, 5, 7, 11, 13, 17, 19


def by_autograd(inputs, memory, hidden, *, attention, cell, context_weight):
    states, contexts = [], []
    for word in cell.project(inputs).unbind(1):
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
    found, slopes = run(attending_gru, modules, given)
    wanted, wanted_slopes = run(by_autograd, modules, given)
    torch.testing.assert_close(tuple(found), wanted)
    for slope, right in zip(slopes, wanted_slopes, strict=True):
        torch.testing.assert_close(slope, right)


def test_very_large_numbers_give_no_nan():
    modules, given = leaves(scale=1e3)
    _, slopes = run(attending_gru, modules, given)
    assert all(slope.isfinite().all() for slope in slopes)
