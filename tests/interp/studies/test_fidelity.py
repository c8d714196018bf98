"""Fidelity is measured, shown, and kept with the lenses."""

import copy
import io
import json
import math
from dataclasses import replace

import pytest
import torch

from saccade.errors import LensError, UsageError
from saccade.interp.lenses.jacobian_lens import fit_jacobian
from saccade.interp.lenses.lens_set import add_quality, load_lenses
from saccade.interp.lenses.residual_lenses import baseline_lenses
from saccade.interp.lenses.top_tokens import plain
from saccade.interp.readings.reader import read
from saccade.interp.studies.fidelity.comparison import compare_kinds
from saccade.interp.studies.fidelity.config import FidelityConfig
from saccade.interp.studies.fidelity.measure import measure_fidelity

QUICK = FidelityConfig(windows=9, window=17, basis_windows=3, directions=5, control=4)
CHECKS = ("ablation", "alignment")
METRICS = [f"{by}{of}" for by in ("", "raw_", "gradient_", "path_") for of in CHECKS]
METRICS += ["spearman", "variance", "partial", "control", "control_variance", "control_partial"]


@pytest.fixture(scope="module")
def progress():
    return []


@pytest.fixture(scope="module")
def fidelity(story_lenses, unseen, progress):
    return measure_fidelity(
        story_lenses,
        unseen,
        layers=[1, 4],
        heads=[2, 5],
        config=QUICK,
        progress=lambda *each: progress.append(each),
    )


def test_every_head_has_every_metric_with_its_interval(fidelity, progress):
    assert [(each.layer, each.head) for each in fidelity.heads] == [(1, 2), (1, 5), (4, 2), (4, 5)]
    for each in fidelity.heads:
        assert each.effect > 0
        for name in METRICS:
            found = getattr(each, name)
            assert -1 <= found.low <= found.value + 1e-6 <= found.high + 2e-6 <= 1 + 4e-6, name
    stage, done, total = progress[-1]
    assert (stage, done) == ("touching heads", total)


def test_the_mean_is_that_of_the_heads_and_the_lead_is_over_the_unembedding(fidelity):
    own = sum(each.ablation.value for each in fidelity.heads) / 4
    raw = sum(each.raw_ablation.value for each in fidelity.heads) / 4
    assert fidelity.mean["ablation"].value == pytest.approx(own, abs=1e-6)
    assert fidelity.mean["ablation_over_raw"].value == pytest.approx(own - raw, abs=1e-6)


def test_the_table_marks_heads_that_are_not_above_the_unembedding(fidelity):
    from rich.console import Console

    console = Console(width=200, file=io.StringIO())
    console.print(fidelity.to_tables())
    rows = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert len(rows) == 4 * 5  # four interventions, four heads and their mean
    for table in range(4):
        *of_heads, mean = rows[5 * table : 5 * table + 5]
        for each, row in zip(fidelity.heads, of_heads, strict=True):
            assert f"{each.layer}.{each.head}" in row
            assert ("*" in row) == (not each.is_above_raw)
        assert "mean" in mean
    assert fidelity.heads[0].partial.short() in rows[10]


def test_tables_fit_a_terminal_of_80_columns(fidelity):
    from rich.console import Console

    console = Console(width=80, file=io.StringIO())
    console.print(fidelity.to_tables())
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("±" in line for line in lines) == 4 * 5  # no cell is broken over two lines
    assert "…" not in console.file.getvalue()


def test_json_is_plain_numbers(fidelity):
    found = json.loads(fidelity.to_json())
    assert found["heads"][0]["ablation"].keys() == {"value", "low", "high"}
    assert found["mean"]["alignment"]["low"] <= found["mean"]["alignment"]["high"]


def test_metrics_are_stored_with_the_lenses_layer_by_layer(
    story_lenses, fidelity, stories, tmp_path
):
    one = replace(fidelity, heads=fidelity.heads[:1])
    other = replace(fidelity, heads=fidelity.heads[1:])
    story_lenses.save(path := tmp_path / "lens")
    measured = load_lenses(path, stories)
    for part in (one, other):
        add_quality(path, measured, part.quality())
    again = load_lenses(path, stories)
    for each in fidelity.heads:
        found = again.quality_of(each.layer, each.head)
        assert found["ablation"] == pytest.approx(each.ablation.value, abs=1e-5)
        assert {"kl", "gain", "alignment", "spearman"} <= found.keys()
    assert "ablation" not in again.quality_of(1, 0)  # not measured
    assert "ablation" not in again.quality_of(2, 7)
    assert again.quality_of(0, 0).keys() == {"kl", "gain"}


def test_metrics_do_not_overwrite_lenses_that_were_fitted_meanwhile(
    story_lenses, fidelity, stories, tmp_path
):
    story_lenses.save(path := tmp_path / "lens")
    measured = load_lenses(path, stories)
    newer = replace(story_lenses, by_layer=copy.deepcopy(story_lenses.by_layer))
    newer.by_layer[2].weight.data.mul_(1.5)
    replace(newer, provenance=replace(newer.provenance, n_tokens=4096)).save(path)
    with pytest.raises(LensError, match="was fitted again while they were measured"):
        add_quality(path, measured, fidelity.quality())
    found = load_lenses(path, stories)
    assert found.provenance.n_tokens == 4096
    assert torch.equal(found.by_layer[2].weight, newer.by_layer[2].weight)
    assert "ablation" not in found.quality


def test_a_reading_shows_the_fidelity_of_each_lens(story_lenses, fidelity, stories, tmp_path):
    story_lenses.save(path := tmp_path / "lens")
    add_quality(path, load_lenses(path, stories), fidelity.quality())
    reading = read(stories, "Once upon a time", lenses=load_lenses(path, stories), effects=False)
    known = reading.at(4, 5).lens
    assert known.fidelity == pytest.approx(fidelity.heads[-1].ablation.value, abs=1e-5)
    assert reading.at(0, 0).lens.fidelity is None
    assert f"fidelity {known.fidelity:+.2f}" in reading.to_table(by="lens", heads=99)
    assert f'"ablation":{plain(known.fidelity)}' in reading.to_html()
    other = read(stories, "Once upon a time", lenses=story_lenses, effects=False)
    assert "fidelity" not in other.to_table(by="lens", heads=99)


def test_without_directions_the_basis_is_left_out(story_lenses, unseen):
    found = measure_fidelity(
        story_lenses, unseen, layers=[0], heads=[0], config=replace(QUICK, directions=0)
    )
    assert found.heads[0].spearman is None
    assert "spearman" not in found.quality()


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"window": 4}, "windows of 4 tokens"),
        ({"windows": 1}, "cannot measure on 1 windows"),
        ({"window": 62}, "two of 62 are needed"),
    ],
)
def test_too_little_text_is_refused(story_lenses, unseen, change, tokens):
    with pytest.raises(UsageError, match=tokens):
        measure_fidelity(story_lenses, unseen, layers=[0], config=replace(QUICK, **change))


def test_attribution_can_be_left_out_or_take_more_points(story_lenses, unseen):
    quick = replace(QUICK, directions=0)

    def path(gradients):
        config = replace(quick, gradients=gradients)
        return measure_fidelity(story_lenses, unseen, layers=[0], heads=[3], config=config)

    assert path(0).heads[0].gradient_ablation is None
    assert path(0).heads[0].path_alignment is None
    one, three = path(1), path(3)
    assert one.heads[0].gradient_ablation == three.heads[0].gradient_ablation
    assert one.heads[0].path_ablation.value < three.heads[0].path_ablation.value


def test_a_layer_without_a_lens_is_refused(story_lenses, unseen):
    some = replace(story_lenses, by_layer={0: story_lenses.by_layer[0]})
    with pytest.raises(LensError, match="no lens for layer 3"):
        measure_fidelity(some, unseen, layers=[3], config=QUICK)


def test_kinds_are_put_to_the_same_test(stories, story_lenses, story_corpus, unseen):
    text = story_corpus(slice(0, 60)).windows
    jacobian = fit_jacobian(stories, text, story_lenses.baseline, layers=[4])
    every = {
        "unembedding": baseline_lenses(stories, "logit-head"),
        "closed form": story_lenses,
        "jacobian": replace(story_lenses, by_layer=dict(jacobian)),
    }
    kinds = compare_kinds(every, unseen, layers=[4], config=QUICK)
    rows = {row.name: row for row in kinds.rows}
    attribution = ["gradient at the text", "gradient half-way"]
    assert list(rows) == [*every, *attribution, "variance alone"]
    # The last layer: only its feed-forward part lies between a head and the tokens.
    assert rows["jacobian"].ablation.value > 0.5
    assert rows["closed form"].kl.value < rows["unembedding"].kl.value
    # One head of a layer is one head, whichever way it is measured.
    alone = measure_fidelity(story_lenses, unseen, layers=[4], config=QUICK)
    assert rows["closed form"].ablation.value == pytest.approx(alone.mean["ablation"].value)
    assert rows["unembedding"].alignment.value == pytest.approx(alone.mean["raw_alignment"].value)
    assert json.loads(kinds.to_json())["kinds"][2]["name"] == "jacobian"
    assert all(math.isfinite(row.kl.value) for row in kinds.rows[:3])
    # Attribution is of this text, no map of z; the variance makes no prediction of tokens.
    assert rows["gradient half-way"].ablation.value > rows["jacobian"].ablation.value
    assert rows["gradient half-way"].ablation == alone.mean["path_ablation"]
    assert rows["gradient at the text"].alignment == alone.mean["gradient_alignment"]
    assert rows["gradient half-way"].kl is None and rows["variance alone"].ablation is None
    assert rows["variance alone"].partial is None and rows["closed form"].partial is not None


def test_the_comparison_is_split_by_layer(stories, story_lenses, unseen):
    kinds = compare_kinds({"own": story_lenses}, unseen, layers=[1, 3], config=QUICK)
    for at in range(len(kinds.rows)):
        for measure in ("kl", "ablation", "spearman"):
            whole = getattr(kinds.rows[at], measure)
            parts = [getattr(kinds.by_layer[layer][at], measure) for layer in (1, 3)]
            if whole is None:
                assert parts == [None, None]
            else:
                assert whole.value == pytest.approx(sum(p.value for p in parts) / 2, abs=1e-5)
    assert list(json.loads(kinds.to_json())["by_layer"]) == ["1", "3"]
