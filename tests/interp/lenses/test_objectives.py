"""What lenses are trained towards, judged by torch's own losses and by loops."""

import math

import pytest
import torch
from torch.nn import functional

from saccade.errors import UsageError
from saccade.interp.lenses.gradient import Target, find_objective, objectives, register_objective

POSITIONS, HEADS, TOKENS, LENGTH = 5, 3, 23, 7


@pytest.fixture(scope="module")
def logits():
    return 2 * torch.randn(POSITIONS, HEADS, TOKENS, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def target():
    generator = torch.Generator().manual_seed(2)
    seen = torch.tensor([1, 2, 4, 7, 3])
    return Target(
        log_probs=torch.randn(POSITIONS, TOKENS, generator=generator).log_softmax(-1),
        next_ids=torch.randint(TOKENS, (POSITIONS,), generator=generator),
        input_ids=torch.randint(TOKENS, (POSITIONS, LENGTH), generator=generator),
        input_mask=torch.arange(LENGTH) < seen[:, None],
    )


def test_kl_is_torchs_own(logits, target):
    model = target.log_probs[:, None].expand_as(logits)
    expected = functional.kl_div(
        logits.log_softmax(-1), model, reduction="none", log_target=True
    ).sum(-1)
    torch.testing.assert_close(find_objective("kl")(logits, target), expected)


def test_reverse_kl_is_torchs_own_the_other_way_round(logits, target):
    model = target.log_probs[:, None].expand_as(logits)
    expected = functional.kl_div(
        model, logits.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    torch.testing.assert_close(find_objective("reverse-kl")(logits, target), expected)


def test_cross_entropy_is_torchs_own(logits, target):
    next_ids = target.next_ids[:, None].expand(-1, HEADS)
    expected = functional.cross_entropy(logits.movedim(-1, 1), next_ids, reduction="none")
    torch.testing.assert_close(find_objective("cross-entropy")(logits, target), expected)


def test_input_is_the_mean_surprise_of_the_tokens_so_far_by_loops(logits, target):
    found = find_objective("input")(logits, target)
    for position in range(POSITIONS):
        tokens = [
            int(token)
            for token, seen in zip(
                target.input_ids[position], target.input_mask[position], strict=True
            )
            if seen
        ]
        for head in range(HEADS):
            powers = [math.exp(each) for each in logits[position, head].tolist()]
            surprise = [-math.log(powers[token] / sum(powers)) for token in tokens]
            expected = sum(surprise) / len(tokens)
            assert float(found[position, head]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["kl", "reverse-kl"])
def test_a_divergence_is_zero_only_for_the_models_own_prediction(target, name):
    same = target.log_probs[:, None].expand(-1, HEADS, -1) + 3.0  # a baseline changes nothing
    zero = find_objective(name)(same, target)
    torch.testing.assert_close(zero, torch.zeros_like(zero), atol=1e-6, rtol=0)
    assert (find_objective(name)(-same, target) > 0.1).all()


def test_an_objective_of_ones_own_is_found_by_its_name(logits, target, monkeypatch):
    monkeypatch.setattr("saccade.interp.lenses.gradient._OBJECTIVES", {"kl": find_objective("kl")})

    @register_objective("size")
    def size(logits, target):
        return logits.square().mean(-1)

    assert objectives() == ("kl", "size")
    torch.testing.assert_close(find_objective("size")(logits, target), size(logits, target))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as raised:
        find_objective("cross-entropie")
    assert str(raised.value).startswith("no objective 'cross-entropie': known are cross-entropy,")
    assert raised.value.hint.startswith("did you mean 'cross-entropy'? ")
    assert "--plugin" in raised.value.hint
