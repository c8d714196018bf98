"""Running sums over a text, judged by one pass over everything at once in float64."""

import pytest
import torch

from saccade.errors import LensError
from saccade.heads import capture
from saccade.lenses.statistics import EXPECTED_EVERY, POSITION_EVERY, PREDICTED_EVERY, Statistics

BATCHES, ROWS, LENGTH = 5, 3, 11


def every(stride: int) -> list[int]:
    """Every so-many-th position of a row, beginning one earlier in each second next row."""
    return [
        row * LENGTH + column
        for row in range(ROWS)
        for column in range(-(row // POSITION_EVERY) % stride, LENGTH, stride)
    ]


PREDICTED, EXPECTED = every(PREDICTED_EVERY), every(EXPECTED_EVERY)


@pytest.fixture(scope="module")
def texts():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, 101, (BATCHES, ROWS, LENGTH), generator=generator)


def sums_of(model, texts) -> Statistics:
    statistics = Statistics.empty(model)
    for ids in texts:
        captured = capture(model, ids)
        statistics.add(model, captured.z, captured.final)
    return statistics


@pytest.fixture(scope="module")
def statistics(tiny_llama, texts):
    return sums_of(tiny_llama, texts)


@pytest.fixture(scope="module")
def by_hand(tiny_llama, texts):
    """Every sum from stacked float64 tensors and the model's own logits."""
    captured = [capture(tiny_llama, ids) for ids in texts]
    f = torch.stack([each.final for each in captured]).flatten(1, 2).double()
    logits = torch.stack([tiny_llama.hf(ids, use_cache=False).logits for ids in texts])
    p = logits.double().softmax(-1).flatten(1, 2)
    u = p[:, EXPECTED] @ tiny_llama.unembedding.weight.double()
    p = p[:, PREDICTED]
    expected = {
        "n": torch.tensor([float(BATCHES * ROWS * LENGTH)]),
        "f": f.sum((0, 1)),
        "predicted.n": torch.tensor([float(p.shape[:2].numel())]),
        "predicted.p": p.sum((0, 1)),
        "expected.n": torch.tensor([float(u.shape[:2].numel())]),
        "expected.u": u.sum((0, 1)),
    }
    for at in tiny_llama.layers:
        z = torch.stack([each.z[at.index] for each in captured]).flatten(1, 2).double()
        some = z[:, EXPECTED]
        expected |= {
            f"{at.index}.z": z.sum((0, 1)),
            f"{at.index}.zz": torch.einsum("bnhi,bnhj->hij", z, z),
            f"{at.index}.zf": torch.einsum("bnhi,bnd->hid", z, f),
            f"{at.index}.expected.z": some.sum((0, 1)),
            f"{at.index}.expected.zu": torch.einsum("bnhi,bnd->hid", some, u),
        }
    return expected


def test_every_sum_is_what_one_big_stack_gives(statistics, by_hand):
    assert statistics.sums.keys() == by_hand.keys()
    assert statistics.n == BATCHES * ROWS * LENGTH
    for name, expected in by_hand.items():
        size = expected.abs().max()
        torch.testing.assert_close(
            statistics.sums[name], expected.double(), atol=float(1e-5 * size), rtol=1e-5
        )


def test_means_are_over_the_positions_that_were_summed(statistics, by_hand):
    n, expected = BATCHES * ROWS * LENGTH, int(by_hand["expected.n"])
    assert expected == BATCHES * len(EXPECTED) < BATCHES * len(PREDICTED)
    torch.testing.assert_close(statistics.mean("1.z"), statistics.sums["1.z"] / n)
    torch.testing.assert_close(
        statistics.mean("1.expected.z"), by_hand["1.expected.z"] / expected, atol=1e-6, rtol=1e-5
    )
    assert float(statistics.mean("predicted.p").sum()) == pytest.approx(1.0, abs=1e-6)


def test_two_batches_merge_to_exactly_what_one_pass_gives(tiny_llama, texts):
    merged = sums_of(tiny_llama, texts[:1]).merge(sums_of(tiny_llama, texts[1:2]))
    whole = sums_of(tiny_llama, texts[:2])
    assert merged.layers == whole.layers and merged.sums.keys() == whole.sums.keys()
    assert all(torch.equal(merged.sums[name], whole.sums[name]) for name in whole.sums)


def test_two_halves_merge_to_what_one_pass_gives_but_for_the_order_of_adding(
    tiny_llama, texts, statistics
):
    merged = sums_of(tiny_llama, texts[:2]).merge(sums_of(tiny_llama, texts[2:]))
    for name, total in statistics.sums.items():
        size = float(total.abs().max())
        torch.testing.assert_close(merged.sums[name], total, atol=1e-15 * size, rtol=1e-13)


def test_merging_leaves_both_parts_as_they_were(tiny_llama, texts):
    one, other = sums_of(tiny_llama, texts[:1]), sums_of(tiny_llama, texts[1:2])
    before = one.sums["1.zz"].clone()
    one.merge(other)
    assert torch.equal(one.sums["1.zz"], before)


def test_the_mean_prediction_does_not_depend_on_how_texts_begin(stories, told):
    """All stories begin alike; each of their first places has to count as often as any other."""
    windows = told[:, :32]  # a whole number of strides
    captured = capture(stories, windows, every=POSITION_EVERY)
    statistics = Statistics.empty(stories)
    statistics.add(stories, captured.z, captured.final)
    every = stories.hf(windows, use_cache=False).logits.double().softmax(-1).mean((0, 1))
    found = statistics.mean("predicted.p")
    assert float((every * (every / found).log()).sum()) < 0.03


def test_a_text_of_one_position_has_its_prediction_counted(tiny_llama):
    """Else nothing is known of what the model predicts, and the lenses come out as no numbers."""
    found = sums_of(tiny_llama, torch.tensor([[[17]]]))
    assert float(found.sums["predicted.n"]) == float(found.sums["expected.n"]) == 1
    assert float(found.sums["predicted.p"].sum()) == pytest.approx(1.0, abs=1e-6)


def test_sums_of_another_shape_of_model_are_not_merged(tiny_llama, stories):
    with pytest.raises(LensError, match="different layers, heads or sizes") as raised:
        Statistics.empty(tiny_llama).merge(Statistics.empty(stories))
    assert raised.value.hint == "merge only lenses that were fitted for one model"
