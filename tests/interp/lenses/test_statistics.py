"""Running sums over a text, judged by one pass over everything at once in float64."""

import pytest
import torch

from saccade.errors import LensError
from saccade.interp.heads.capture import capture
from saccade.interp.lenses import statistics as sums
from saccade.interp.lenses.batches import kept_positions, row_hashes
from saccade.interp.lenses.statistics import (
    EXPECTED_EVERY,
    POSITION_EVERY,
    PREDICTED_EVERY,
    Statistics,
)

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
            f"{at.index}.expected.z": some.sum((0, 1)),
            f"{at.index}.scatter.zz": scatter(z, z),
            f"{at.index}.scatter.zf": scatter(z, f),
            f"{at.index}.expected.scatter.zu": scatter(some, u),
        }
    return expected


def scatter(z, other):
    """The sum of products about the means, the means of all batches taken first."""
    z, other = (each - each.mean((0, 1)) for each in (z, other))
    return torch.einsum("bnhi,bnhj->hij" if other.dim() == 4 else "bnhi,bnj->hij", z, other)


def test_every_sum_is_what_one_big_stack_gives(statistics, by_hand):
    assert statistics.sums.keys() == by_hand.keys()
    assert statistics.n == BATCHES * ROWS * LENGTH
    for name, expected in by_hand.items():
        size = expected.abs().max()
        torch.testing.assert_close(
            statistics.sums[name].double(), expected.double(), atol=float(1e-5 * size), rtol=1e-5
        )


def test_means_are_over_the_positions_that_were_summed(statistics, by_hand):
    n, expected = BATCHES * ROWS * LENGTH, int(by_hand["expected.n"])
    assert expected == BATCHES * len(EXPECTED) < BATCHES * len(PREDICTED)
    torch.testing.assert_close(statistics.mean("1.z"), statistics.sums["1.z"] / n)
    torch.testing.assert_close(
        statistics.mean("1.expected.z"), by_hand["1.expected.z"] / expected, atol=1e-6, rtol=1e-5
    )
    assert float(statistics.mean("predicted.p").sum()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("cut", [1, 2, 4])
def test_two_parts_merge_to_what_one_pass_gives(tiny_llama, texts, statistics, cut):
    merged = sums_of(tiny_llama, texts[:cut]).merge(sums_of(tiny_llama, texts[cut:]))
    assert merged.layers == statistics.layers
    assert_same(merged, statistics, scatter=5e-7)


def assert_same(found, expected, *, scatter):
    """Plain sums to the rounding of float64, those of products to some of float32."""
    assert found.sums.keys() == expected.sums.keys()
    for name, total in expected.sums.items():
        size = float(total.abs().max())
        off = float((found.sums[name].double() - total.double()).abs().max())
        assert found.sums[name].dtype == total.dtype
        assert off <= size * (scatter if "scatter" in name else 1e-13), name


def test_a_part_without_text_changes_nothing_whichever_comes_first(tiny_llama, statistics):
    nothing = Statistics.empty(tiny_llama)
    for merged in (nothing.merge(statistics), statistics.merge(nothing)):
        assert all(torch.equal(merged.sums[k], total) for k, total in statistics.sums.items())
    before = {name: total.clone() for name, total in statistics.sums.items()}
    statistics.add(tiny_llama, *no_positions(tiny_llama))
    assert all(torch.equal(statistics.sums[name], total) for name, total in before.items())


def no_positions(model):
    z = {at.index: torch.zeros(2, 0, at.n_heads, at.d_head) for at in model.layers}
    return z, torch.zeros(2, 0, model.d_model)


def test_merging_leaves_both_parts_as_they_were(tiny_llama, texts):
    one, other = sums_of(tiny_llama, texts[:1]), sums_of(tiny_llama, texts[1:2])
    before = [{name: total.clone() for name, total in each.sums.items()} for each in (one, other)]
    one.merge(other)
    for each, kept in zip((one, other), before, strict=True):
        assert all(torch.equal(each.sums[name], total) for name, total in kept.items())


@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_products_keep_their_digits_where_means_are_large(tiny_llama, mean):
    """Judged by float64 throughout. Plain float32 sums of such heads have no digit left."""
    generator = torch.Generator().manual_seed(7)
    batches = []
    for drift in range(23):  # from text to text the means move, too
        final = mean + 0.1 * drift + torch.randn(3, 17, tiny_llama.d_model, generator=generator)
        z = {
            at.index: mean
            + 0.1 * drift
            + torch.randn(3, 17, at.n_heads, at.d_head, generator=generator)
            + final[..., :1, None]
            for at in tiny_llama.layers
        }
        batches.append((z, final))
    whole, halves = Statistics.empty(tiny_llama), [Statistics.empty(tiny_llama) for _ in "ab"]
    for count, (z, final) in enumerate(batches):
        whole.add(tiny_llama, z, final)
        halves[count > 8].add(tiny_llama, z, final)
    f = torch.stack([final for _, final in batches]).flatten(1, 2).double()
    for at in tiny_llama.layers:
        z = torch.stack([activation[at.index] for activation, _ in batches]).flatten(1, 2).double()
        for found in (whole, halves[0].merge(halves[1])):
            for name, other in (("zz", z), ("zf", f)):
                expected = scatter(z, other) / f.shape[:2].numel()
                off = (found.covariance(at.index, name) - expected).abs().max()
                # The values themselves are float32: those of 300 are rounded to 3e-5.
                assert float(off) < 1e-6 * float(expected.abs().max()), name
    plain = sum(torch.einsum("brhi,brhj->hij", z[0].float(), z[0].float()) for z, _ in batches)
    about = torch.einsum("hi,hj->hij", *[whole.sums["0.z"].float()] * 2) / whole.n
    naive = (plain - about).double()
    lost = (naive - whole.sums["0.scatter.zz"]).abs().max() / naive.abs().max()
    assert (float(lost) > 1e-4) == (mean > 0)


def test_a_head_that_always_holds_the_same_has_no_variance_at_all(tiny_llama):
    found = Statistics.empty(tiny_llama)
    generator = torch.Generator().manual_seed(3)
    for rows in (2, 3, 5):
        z = {
            at.index: torch.full((rows, 7, at.n_heads, at.d_head), 0.7) for at in tiny_llama.layers
        }
        final = torch.randn(rows, 7, tiny_llama.d_model, generator=generator)
        found.add(tiny_llama, z, final)
    assert not found.covariance(0, "zz").abs().max() > 1e-30
    assert not found.covariance(0, "zf").abs().max() > 1e-12


def test_sums_stored_before_about_zero_and_in_float64_are_read_and_merged(
    tiny_llama, texts, statistics
):
    one, other = sums_of(tiny_llama, texts[:2]), sums_of(tiny_llama, texts[2:])
    old = {name: total for name, total in one.sums.items() if "scatter" not in name}
    for layer in one.layers:
        z, f = one.sums[f"{layer}.z"], one.sums["f"]
        zu = one.sums[f"{layer}.expected.scatter.zu"].double()
        of_u = one.sums[f"{layer}.expected.z"], one.sums["expected.u"]
        old |= {
            f"{layer}.zz": one.sums[f"{layer}.scatter.zz"].double()
            + torch.einsum("hi,hj->hij", z, z) / one.n,
            f"{layer}.zf": one.sums[f"{layer}.scatter.zf"].double()
            + torch.einsum("hi,d->hid", z, f) / one.n,
            f"{layer}.expected.zu": zu + torch.einsum("hi,d->hid", *of_u) / one.sums["expected.n"],
        }
    read = Statistics.from_tensors(old, one.layers)
    assert_same(read, one, scatter=1e-7)
    assert_same(read.merge(other), statistics, scatter=5e-7)


def test_token_probabilities_are_held_a_few_positions_at_a_time(
    tiny_llama, texts, statistics, monkeypatch
):
    """For a vocabulary of 262,144 tokens those of a batch would be two gigabytes."""
    monkeypatch.setattr(sums, "PREDICTED_BYTES", 5 * 101 * 4)
    monkeypatch.setattr(sums, "TOKENS_AT_ONCE", 13)
    asked, logits = [], type(tiny_llama.unembedding).logits

    def watched(self, final, *, tokens=None):
        asked.append(len(final))
        return logits(self, final, tokens=tokens)

    monkeypatch.setattr(type(tiny_llama.unembedding), "logits", watched)
    found = sums_of(tiny_llama, texts)
    assert max(asked) == 5 and sum(asked) == BATCHES * len(PREDICTED)
    for name, total in statistics.sums.items():
        size = float(total.abs().max())
        torch.testing.assert_close(found.sums[name], total, atol=1e-6 * size, rtol=1e-6)


def test_the_mean_prediction_does_not_depend_on_how_texts_begin(stories, told):
    """All stories begin alike; each of their first places has to count as often as any other."""
    windows = told[:, :32]  # a whole number of strides
    captured = capture(stories, windows, positions=kept_positions(stories, windows))
    statistics = Statistics.empty(stories)
    statistics.add(stories, captured.z, captured.final, phase=row_hashes(windows))
    every = stories.hf(windows, use_cache=False).logits.double().softmax(-1)
    every = every[:, 1:].mean((0, 1))  # without the first token, on which attention rests
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
    assert raised.value.hint == "merge only lenses that were fitted for the same model"
