"""Tables and the data tree of HeadVis: complete, readable, and equal to what the atlas holds."""

import csv
import json

import pytest

from saccade.interp.atlas.atlas_export import table_rows, write_csv, write_headvis
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


def test_headvis_gets_every_head_with_its_sequences(atlas, tmp_path):
    write_headvis(tmp_path / "data", atlas)
    read = {
        path.relative_to(tmp_path / "data").as_posix(): json.loads(path.read_text("utf-8"))
        for path in (tmp_path / "data").rglob("*.json")
    }
    assert {"config.json", "scatter_data.json", "server_config.json"} <= set(read)
    assert read["attributions/manifest.json"] == {}
    assert {f"heads/L{layer}H{head}.json" for layer, head in atlas.sites} <= set(read)
    n = atlas.windows.shape[1]
    for at in (0, 17):
        layer, head = atlas.sites[at]
        page = read[f"heads/L{layer}H{head}.json"]
        assert sum(page["qk_distance_histogram"]) == pytest.approx(1, abs=1e-3)
        assert sum(page["histogram"]) == len(atlas.windows)
        for sequence in page["sequences"]:
            assert len(sequence["tokens"]) == n
            for index, value in zip(*sequence["attention"].values(), strict=True):
                query, key = divmod(index, n)
                assert 1 <= key <= query < n
                assert 0 < value <= sequence["max_activation"] + 1e-3


def test_a_page_shows_contexts_from_strong_to_nothing(atlas):
    pages = AtlasPages(atlas)
    page = pages.page(3, 2)
    at = atlas.index(3, 2)
    strongest = page["does"]["strongest"]
    assert strongest[0]["kl"] == pytest.approx(float(atlas.records.kl[:, at].max()), rel=1e-5)
    first = strongest[0]
    ids = atlas.windows[first["window"], 1 : first["position"] + 1].tolist()  # without <s>
    shown = (first["before"] + "".join(first["tokens"])).removeprefix("<s>")
    assert shown == "".join(atlas.show(ids))
    assert sum(each["share"] for each in page["does"]["strata"]) == pytest.approx(1)
    for stratum in page["does"]["strata"]:
        for context in stratum["contexts"]:
            assert stratum["from"] <= context["kl"] <= (stratum["to"] or 1e9)
    assert sum(page["does"]["histogram"]["share"]) == pytest.approx(1)
    assert page["knows"]["predicts"]
    overview = pages.overview()
    assert len(overview["heads"]) == len(atlas.sites)
    json.dumps([page, overview], allow_nan=False)
