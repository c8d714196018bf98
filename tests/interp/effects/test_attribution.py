"""Attribution is the gradient at the text times the way to the replacement."""

import pytest
import torch

from saccade.interp.effects.attribution import attribute, with_agreement, with_exact_end
from saccade.interp.effects.positions import HeadAt, Row, RowChange, position_effects, run_rows
from saccade.interp.effects.replacement import Replacement
from saccade.interp.effects.target import Target
from saccade.interp.heads.capture import capture

TARGET = Target(7, 11)


def moved_a_little(model, ids, values, head, size):
    (position,) = head.positions
    z = capture(model, ids).z[head.layer][0, position, head.head]
    new = z + size * (values.heads[head.layer][head.head] - z)
    return Row((RowChange(head.layer, (head.head,), new[None], head.positions),))


def test_the_gradient_at_the_text_is_a_finite_difference_in_every_family(model, ids, replacement):
    values, step = replacement(model), 1e-2
    last = model.layers[-1].index
    (found,) = attribute(model, ids[1:], TARGET, replacement=values)
    for head in (HeadAt(0, 2, (5,)), HeadAt(1, 0, (10,)), HeadAt(last, 1, (10,))):
        rows = [moved_a_little(model, ids[1:], values, head, size) for size in (step, -step)]
        states = run_rows(model, ids[1:], rows, at=[-1]).states[:, 0]
        up, down = TARGET.score(model.unembedding.logits(states)).tolist()
        assert found.value(head) == pytest.approx((down - up) / (2 * step), rel=0.03, abs=3e-3)


def test_the_score_is_the_models_own(model, ids, replacement):
    for target in (TARGET, Target(13)):
        found = attribute(model, ids, target, replacement=replacement(model), at=6)
        expected = target.score(model.hf(ids).logits[:, 6])
        assert [each.score for each in found] == pytest.approx(expected.tolist(), abs=1e-4)


def test_prompts_of_a_batch_do_not_change_each_other_and_padding_nothing(llama, ids, replacement):
    values, lengths = replacement(llama), [7, 11]
    targets = [TARGET, Target(3, 5)]
    both = attribute(llama, ids, targets, replacement=values, lengths=lengths)
    for row, (length, target) in enumerate(zip(lengths, targets, strict=True)):
        (alone,) = attribute(llama, ids[row : row + 1, :length], target, replacement=values)
        for layer, each in alone.by_layer.items():
            assert each.shape == (length, 6)
            torch.testing.assert_close(both[row].by_layer[layer], each, atol=1e-5, rtol=1e-4)


def test_later_positions_get_nothing(llama, ids, replacement):
    (found,) = attribute(llama, ids[:1], TARGET, replacement=replacement(llama), at=4)
    for layer, each in found.by_layer.items():
        assert not bool(each[5:].any())
        assert bool(each[4].all())
        assert bool(each[:4].any()) == (layer != 2), "the last layer acts at its own position"


def test_no_gradient_is_kept_and_no_weight_gets_one(llama, ids, replacement):
    (found,) = attribute(llama, ids[:1], TARGET, replacement=replacement(llama))
    assert not any(each.requires_grad for each in found.by_layer.values())
    assert all(weight.grad is None for weight in llama.hf.parameters())
    assert torch.is_grad_enabled()


def test_the_agreement_holds_the_exact_effects_of_the_largest(llama, ids, replacement):
    values = replacement(llama)
    (found,) = attribute(llama, ids[:1], TARGET, replacement=values)
    assert found.agreement is None
    measured = with_agreement(llama, ids[:1], found, replacement=values, n=5).agreement
    every = sorted(
        (abs(float(v)), layer, p, h)
        for layer, each in found.by_layer.items()
        for p, row in enumerate(each)
        for h, v in enumerate(row)
    )
    assert [(h.layer, h.positions[0], h.head) for h in measured.heads] == [
        each[1:] for each in every[:-6:-1]
    ]
    exact = position_effects(llama, ids[:1], measured.heads, replacement=values, target=TARGET)
    assert [e.on_token for e in measured.exact] == pytest.approx(
        [exact[h].on_token for h in measured.heads]
    )
    pair = torch.tensor([measured.attribution, [e.on_token for e in measured.exact]])
    assert measured.correlation == pytest.approx(float(torch.corrcoef(pair)[0, 1]), abs=1e-5)


@pytest.mark.parametrize("target", [TARGET, Target(13)])
def test_the_exact_end_is_what_rows_of_the_whole_prompt_give(llama, ids, replacement, target):
    values = replacement(llama)
    (found,) = attribute(llama, ids[:1], target, replacement=values)
    filled = with_exact_end(llama, ids[:1], found, replacement=values)
    heads = [HeadAt(at.index, h, (10,)) for at in llama.layers for h in range(at.n_heads)]
    exact = position_effects(llama, ids[:1], heads, replacement=values, target=target)
    for head in heads:
        assert filled.value(head) == pytest.approx(exact[head].on_token, abs=1e-4)
    for layer, each in found.by_layer.items():
        assert torch.equal(filled.by_layer[layer][:-1], each[:-1])
    assert filled.has_exact_end
    assert not found.has_exact_end


STARTS = (
    "Once upon a time, there was a little girl named Lily. She had a red",
    "One day, Tom and his dog went to the park. They saw a big",
    "Lily and Ben were in the garden. Lily found a",
    "The cat was sad because it lost its ball. Then a bird came and",
)


def test_attribution_follows_the_exact_effects_of_a_trained_model(stories):
    values = Replacement.usual(stories)
    correlation = torch.zeros(len(STARTS), 2)
    for number, text in enumerate(STARTS):
        ids = stories.encode(text)
        heads = [
            HeadAt(at.index, head, (position,))
            for at in stories.layers
            for head in range(at.n_heads)
            for position in range(1, ids.shape[1])
        ]
        target = Target(int(stories.hf(ids).logits[0, -1].argmax()))
        measured = position_effects(stories, ids, heads, replacement=values, target=target)
        truth = [measured[head].on_token for head in heads]
        (found,) = attribute(stories, ids, target, replacement=values)
        for at, each in enumerate((found, with_exact_end(stories, ids, found, replacement=values))):
            pair = torch.tensor([truth, [each.value(head) for head in heads]])
            correlation[number, at] = torch.corrcoef(pair)[0, 1]
    gradient, with_end = correlation.mean(0).tolist()
    assert gradient > 0.8
    assert with_end > 0.9
    assert (correlation[:, 0] < correlation[:, 1]).all()
