"""Tables and the data tree of HeadVis: complete, readable, and equal to what the atlas holds."""

import csv
import json
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch

from saccade.errors import MissingPackageError, StoreError, UsageError
from saccade.interp.atlas.atlas_export import (
    table_rows,
    write_csv,
    write_headvis,
    write_parquet,
)
from saccade.interp.atlas.head_page import AtlasPages
from saccade.interp.atlas.labels import make_labels


def test_the_table_has_every_metric_of_every_head(atlas, tmp_path):
    rows = table_rows(atlas, [each.text for each in make_labels(atlas)])
    write_csv(tmp_path / "heads.csv", rows)
    with (tmp_path / "heads.csv").open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert [row["name"] for row in found] == [head.name for head in atlas.heads]
    assert set(atlas.metrics) <= set(found[0])
    assert [float(row["kl"]) for row in found] == pytest.approx([h.kl for h in atlas.heads])


def test_parquet_has_the_same_table_with_columns_that_some_heads_lack(atlas, tmp_path):
    from pyarrow import parquet

    rows = table_rows(atlas, [each.text for each in make_labels(atlas)])
    rows[1] = {**rows[1], "induction_score": 0.5}
    write_parquet(tmp_path / "heads.parquet", rows)
    found = parquet.read_table(tmp_path / "heads.parquet").to_pylist()
    assert [row.pop("induction_score") for row in found][:3] == [None, 0.5, None]
    del rows[1]["induction_score"]
    assert found == rows


def test_parquet_without_pyarrow_says_what_to_install(atlas, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match="needs the package 'pyarrow'") as caught:
        write_parquet(tmp_path / "heads.parquet", table_rows(atlas, [""] * len(atlas.sites)))
    assert "pip install 'saccade[parquet]'" in caught.value.hint
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def tree(atlas, tmp_path_factory):
    """What is written for HeadVis, by path."""
    folder = tmp_path_factory.mktemp("headvis") / "data"
    write_headvis(folder, atlas)
    return {
        path.relative_to(folder).as_posix(): json.loads(path.read_text("utf-8"))
        for path in folder.rglob("*.json")
    }


SIX = (
    *("self_attention_score", "prev_token_score", "pattern_entropy"),
    *("qk_distance", "qk_distance_variance", "induction_score"),
)


def test_headvis_finds_every_file_and_key_that_its_page_reads(atlas, tree):
    heads = {f"heads/L{layer}H{head}.json" for layer, head in atlas.sites}
    rest = {"config.json", "scatter_data.json", "server_config.json", "attributions/manifest.json"}
    assert set(tree) == heads | rest
    assert tree["attributions/manifest.json"] == tree["server_config.json"] == {}
    config = tree["config.json"]
    assert config["heads"] == [list(site) for site in atlas.sites]
    assert (config["n_layers"], config["n_heads"], config["n_intervals"]) == (5, 8, 5)
    assert set(SIX) <= set(config["metrics"]) == set(config["metric_descriptions"])
    assert config["head_data_pattern"] == "L{layer}H{head}.json" and not config["has_umap"]
    asked = {
        "samples_per_interval": 3,
        "samples_per_top_interval": 10,
        "sparse_topk_per_row": 8,
        "sparse_threshold": 0.005,
        "seq_len": 48,
        "n_sequences": 24,
    }
    assert {key: config["pipeline_config"][key] for key in asked} == asked
    for row in tree["scatter_data.json"]:
        assert set(row) == {"layer", "head", *config["metrics"]}
    page = tree["heads/L3H2.json"]
    for plot in config["custom_plots"]:
        found = page[plot["key"]]
        assert len(found["bin_edges"]) == len(found["bin_values"]) + 1
    for table in config["custom_tables"]:
        assert page[table["key"]] and all(
            set(row) == {"token", "weight"} for row in page[table["key"]]
        )
    assert set(config["statistics_display"]) == set(page["statistics"])
    assert "/" not in config["dataset_name"]  # no path of this machine


@pytest.mark.parametrize("at", [6, 26])
def test_headvis_gets_what_a_plain_attention_pass_gives(atlas, weights, tree, at):
    """Everything from Hugging Face's weights, as the format describes it."""
    layer, head = atlas.sites[at]
    page, own = tree[f"heads/L{layer}H{head}.json"], weights[:, layer, head].clone()
    n = own.shape[-1]
    own[:, :, 0] = 0  # the first position is left out
    peaks = own.flatten(1).amax(1)
    order = peaks.argsort(descending=True).tolist()
    assert len(page["sequences"]) == 5 + 4 * 3  # of 24 windows five are in the highest interval
    for sequence in page["sequences"]:
        window = sequence["sequence_id"]
        assert sequence["tokens"] == atlas.show(atlas.windows[window].tolist())
        assert sequence["seq_len"] == n
        assert sequence["max_activation"] == pytest.approx(float(peaks[window]), abs=2e-3)
        near = {
            5 - order.index(each) * 5 // 24
            for each in order
            if abs(peaks[each] - peaks[window]) < 2e-3
        }
        assert sequence["interval"] in near
        found = dict(zip(sequence["attention_indices"], sequence["attention_values"], strict=True))
        best = own[window].topk(8, dim=-1)
        for query in range(n):
            for key, weight in zip(best.indices[query], best.values[query].tolist(), strict=True):
                if weight >= 0.006:
                    assert found.pop(query * n + int(key)) == pytest.approx(weight, abs=2e-3)
        assert all(value < 0.007 for value in found.values())
    assert [each["interval"] for each in page["sequences"][:5]] == [5] * 5
    assert sum(page["histogram"]["bin_values"]) == len(peaks)
    counts = peaks.histc(50, 0, 1).cumsum(0)
    ours = torch.tensor(page["histogram"]["bin_values"]).cumsum(0)
    assert (counts - ours).abs().max() <= 1  # half precision may cross the bound of a bin


@pytest.mark.parametrize("at", [6, 26])
def test_headvis_gets_tokens_and_distances_of_the_whole_text(stories, atlas, weights, tree, at):
    layer, head = atlas.sites[at]
    page, own = tree[f"heads/L{layer}H{head}.json"], weights[:, layer, head].double()
    own = own * stories.is_text(atlas.windows)[:, :, None]
    own[:, :, 0] = 0
    texts = [atlas.show(window.tolist()) for window in atlas.windows]
    sides = {"query": Counter(), "key": Counter()}
    distances = Counter()
    for window, query, key in own.gt(0).nonzero().tolist():
        weight = float(own[window, query, key])
        sides["query"][texts[window][query]] += weight
        sides["key"][texts[window][key]] += weight
        distances[(query - key).bit_length()] += weight  # 0, 1, 2-3, 4-7
    for side, counted in sides.items():
        shown = {row["token"]: row["weight"] for row in page[f"top_{side}_tokens"]}
        assert len(shown) == 50
        assert shown == pytest.approx({token: counted[token] for token in shown}, abs=2e-3)
        assert min(shown.values()) >= counted.most_common(50)[-1][1] - 2e-3
    found = page["qk_distance_histogram"]
    assert found["bin_edges"][:5] == [0, 1, 2, 4, 8]
    total = sum(distances.values())
    assert found["bin_values"] == pytest.approx(
        [distances[each] / total for each in range(len(found["bin_values"]))], abs=1e-3
    )
    row = tree["scatter_data.json"][at]
    for theirs, offset in (("self_attention_score", 0), ("prev_token_score", 1)):
        diagonal = own.diagonal(-offset, 1, 2).sum() / stories.is_text(atlas.windows).sum()
        assert row[theirs] == pytest.approx(float(diagonal), abs=1e-3)
    assert row["mean_effect"] == pytest.approx(float(atlas.records.kl[:, at].mean()), abs=1e-4)


def test_a_folder_with_other_files_is_not_replaced(atlas, tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match=r"thesis\.txt"):
        write_headvis(tmp_path, atlas)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    for _ in range(2):  # an earlier export is
        write_headvis(tmp_path / "data", atlas)
    without = replace(atlas, extra={})
    with pytest.raises(UsageError, match="no sampled sequences"):
        write_headvis(tmp_path / "data", without)
    assert (tmp_path / "data" / "config.json").is_file()


def test_a_page_shows_contexts_from_strong_to_nothing(atlas):
    pages = AtlasPages(atlas)
    page = pages.page(3, 2)
    at = atlas.index(3, 2)
    strongest = page["does"]["strongest"]
    assert strongest[0]["kl"] == pytest.approx(float(atlas.records.kl[:, at].max()), rel=1e-5)
    first = strongest[0]
    # Without what the tokenizer puts before every text.
    ids = atlas.windows[first["window"], pages.n_special : first["position"] + 1].tolist()
    assert first["before"] + "".join(first["tokens"]) == "".join(atlas.show(ids))
    assert sum(each["share"] for each in page["does"]["strata"]) == pytest.approx(1)
    for stratum in page["does"]["strata"]:
        for context in stratum["contexts"]:
            assert stratum["from"] <= context["kl"] <= (stratum["to"] or 1e9)
    assert sum(page["does"]["histogram"]["share"]) == pytest.approx(1)
    assert page["knows"]["predicts"]
    overview = pages.overview()
    assert len(overview["heads"]) == len(atlas.sites)
    json.dumps([page, overview], allow_nan=False)
