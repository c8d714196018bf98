"""Sparse access gives what a dense memory would with the same weights, and the same gradient."""

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.zoo.models.sparse_access_memory import SparseAccessMemory

BATCH, STEPS, D_INPUT, D_OUTPUT, HIDDEN, SLOTS, WIDTH, NEAREST = 2, 9, 3, 5, 11, 13, 4, 3


def machine(n_reads=2):
    torch.manual_seed(n_reads)
    made = SparseAccessMemory(
        d_input=D_INPUT,
        d_output=D_OUTPUT,
        d_hidden=HIDDEN,
        n_slots=SLOTS,
        d_slot=WIDTH,
        n_reads=n_reads,
        n_nearest=NEAREST,
    )
    for weight in made.parameters():
        weight.data.mul_(2)
    return made


@pytest.fixture
def inputs():
    return torch.randn(BATCH, STEPS, D_INPUT, generator=torch.Generator().manual_seed(0))


def densely(model, sequence, chosen):
    """One sequence on a memory that is kept whole: every slot in turn, weights mostly zero.

    Of slots that are equally near, empty ones for instance, any may be read; so which were is
    given, and only checked.
    """
    n, kernel = model.n_reads, model.controller.kernel
    hidden, cell = torch.zeros(1, 1, HIDDEN), torch.zeros(1, 1, HIDDEN)
    memory = torch.zeros(SLOTS, WIDTH)
    last_used = [slot - SLOTS for slot in range(SLOTS)]
    reads, seen, said = [torch.zeros(SLOTS)] * n, torch.zeros(n * WIDTH), []
    for now, x in enumerate(sequence):
        output, (hidden, cell) = kernel(torch.cat([x, seen])[None, None], (hidden, cell))
        h = output[0, 0]
        word, alpha, gamma = model.pen(h).split([WIDTH, 1, 1])
        spare = last_used.index(min(last_used))
        write = gamma.sigmoid() * sum(reads) / n
        write = alpha.sigmoid() * (write + (1 - gamma.sigmoid()) * torch.eye(SLOTS)[spare])
        kept = 1 - torch.eye(SLOTS)[spare]
        memory = memory * kept[:, None] + torch.outer(write, word.tanh())
        heads, reads = model.read_heads(h).view(n, -1), []
        for head, numbers in enumerate(heads):
            key, strength = numbers[:-1].tanh(), 1 + functional.softplus(numbers[-1])
            directions = memory / memory.norm(dim=1, keepdim=True).clamp_min(1e-2)
            near = (directions @ key).detach()
            best = chosen[now, head].nonzero()[:, 0]
            assert len(best) == NEAREST and near[best].min() >= near.topk(NEAREST)[0].min() - 1e-5
            lengths = (key.norm() * memory.norm(dim=1)).clamp_min(1e-2)
            scores = strength * (memory @ key) / lengths
            reads.append(torch.zeros(SLOTS).index_copy(0, best, scores[best].softmax(0)))
        for weights in (write, *reads):
            for slot in range(SLOTS):
                if weights[slot] > 0.005:
                    last_used[slot] = now
        seen = torch.cat([weights @ memory for weights in reads])
        said.append(model.output(torch.cat([h, seen])))
    return torch.stack(said)


@pytest.mark.parametrize("n_reads", [1, 2])
def test_outputs_and_gradients_agree_with_a_memory_that_is_kept_whole(inputs, n_reads):
    model = machine(n_reads)
    factor = torch.randn(BATCH, STEPS, D_OUTPUT, generator=torch.Generator().manual_seed(1))
    taped = model.run(inputs)
    said = taped.logits
    both = zip(inputs, taped.reads > 0, strict=True)
    expected = torch.stack([densely(model, sequence, chosen) for sequence, chosen in both])
    torch.testing.assert_close(said, expected, atol=1e-4, rtol=1e-3)
    weights = [model.pen.weight, model.read_heads.weight, model.output.weight]
    found = torch.autograd.grad((said * factor).sum(), weights)
    slow = torch.autograd.grad((expected * factor).sum(), weights)
    for one, other in zip(found, slow, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-2)


def test_a_step_reads_few_slots_and_writes_those_it_read_and_one_more(inputs):
    model = machine()
    taped = model.run(inputs)
    torch.testing.assert_close(taped.logits, model(inputs))
    assert taped.reads.shape == (BATCH, STEPS, 2, SLOTS)
    assert ((taped.reads > 0).sum(-1) <= NEAREST).all()
    torch.testing.assert_close(taped.reads.sum(-1), torch.ones(BATCH, STEPS, 2))
    assert ((taped.writes > 0).sum(-1) <= 2 * NEAREST + 1).all()
    assert (taped.writes.sum(-1) <= 1 + 1e-5).all()


def test_what_a_step_costs_to_learn_does_not_grow_with_the_memory():
    """The tape of a larger memory is as long, and no tensor on it is as large as the memory."""
    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel())
        return tensor

    counts = []
    for n_slots in (1000, 50_000):
        model = machine()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.n_slots = n_slots
            model(torch.randn(1, STEPS, D_INPUT)).sum()
        counts.append(sum(sizes))
        sizes.clear()
    assert counts[0] == counts[1]


def test_too_few_slots_are_refused():
    with pytest.raises(UsageError, match="4 slots are too few for 1 heads that read 4 each"):
        SparseAccessMemory(d_input=3, d_output=2, n_slots=4)
