"""`tools/results.py`: one row a recipe, as JSON and as a page."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from results import gather_results, read_results, results_page, write_results
from saccade.errors import RecipeError
from saccade.zoo.recipes import recipe as registry
from saccade.zoo.recipes.run import result_of, write_ensemble
from saccade.zoo.training.run_folder import RunFolder

DOCS = Path(__file__).parent.parent.parent / "docs"
KEYS = ["recipe", "metric", "value", "published", "source", "minutes", "command", "commit", "note"]


@pytest.fixture
def changed_run(tiny_run, tmp_path):
    """A copy of the run with other metrics."""

    def make(name, **metrics):
        shutil.copytree(tiny_run, tmp_path / name)
        folder = RunFolder(tmp_path / name)
        folder.write_metrics({**folder.metrics, **metrics})
        return tmp_path / name

    return make


def test_of_several_runs_the_last_counts_and_rows_of_before_stay(tiny, changed_run, tmp_path):
    old = changed_run("b", value=0.25, evaluated="2020-01-01")
    new = changed_run("a", value=0.75, evaluated="2021-01-01")
    kept = [replace(result_of(old, {"tiny-mirror": tiny}), recipe="zebra")]
    rows = gather_results([new, old], kept=kept)
    assert [(row.recipe, row.value) for row in rows] == [("tiny-mirror", 0.75), ("zebra", 0.25)]
    write_results(tmp_path / "docs", rows)
    assert read_results(tmp_path / "docs") == rows
    held = json.loads((tmp_path / "docs" / "results.json").read_text())
    assert [list(row) for row in held] == [KEYS, KEYS]


def test_the_page_has_a_line_for_each_and_its_cells_stay_cells(tiny, tiny_run):
    row = replace(result_of(tiny_run, {"tiny-mirror": tiny}), note="a | b\nc", published=None)
    page = results_page([row])
    assert page.splitlines()[-1].endswith(r"| a \| b c |")
    assert len({line.replace(r"\|", "").count("|") for line in page.splitlines()[-3:]}) == 1
    assert "`saccade train tiny-mirror --set training.epochs=1`" in page


def test_the_page_of_the_docs_is_what_the_tool_writes():
    assert results_page(read_results(DOCS)) == (DOCS / "results.md").read_text(encoding="utf-8")


def test_what_cannot_be_a_row_is_refused(tiny, tiny_run, tmp_path, monkeypatch):
    shutil.copytree(tiny_run, tmp_path / "young")
    (tmp_path / "young" / "metrics.json").unlink()
    with pytest.raises(RecipeError, match="young has no metric yet"):
        gather_results([tmp_path / "young"])
    monkeypatch.setattr(registry, "_REGISTERED", {})
    with pytest.raises(RecipeError, match="is a run of tiny-mirror, which is not known here"):
        gather_results([tiny_run])
    (tmp_path / "results.json").write_text('[{"recipe": 1}]')
    with pytest.raises(RecipeError, match=r"results.json cannot be read"):
        read_results(tmp_path)
    assert read_results(tmp_path / "nowhere") == []


def test_a_run_and_an_ensemble_become_rows(tool, tiny_run, tmp_path):
    both = tmp_path / "both"
    write_ensemble(both, [tiny_run, tiny_run], RunFolder(tiny_run).metrics)
    code, out, err = tool("results", tiny_run, both, "--out", tmp_path / "docs", "--json")
    assert code == 0 and "results.md" in err
    assert [row["recipe"] for row in json.loads(out)] == ["tiny-mirror", "tiny-mirror x 2"]
    page = (tmp_path / "docs" / "results.md").read_text()
    assert "| `tiny-mirror` | right | **" in page and str(tmp_path) not in page


def test_a_recipe_of_ones_own_is_named_by_its_file(tool, tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", {})
    plugin = Path(__file__).parent.parent / "zoo" / "training" / "tiny.py"
    code, _, err = tool("results", tiny_run, "--out", tmp_path)
    assert code == 1 and "hint: a recipe of your own needs --plugin FILE" in err
    assert tool("results", tiny_run, "--out", tmp_path, "--plugin", plugin)[0] == 0


def test_results_are_of_all_runs_that_are_done(
    tool, tiny_run, tmp_path, monkeypatch, told_in_a_line
):
    monkeypatch.chdir(tmp_path)
    code, _, err = tool("results")
    assert code == 2 and "no run in runs/ is done" in told_in_a_line(err)
    for name in ("done", "young"):
        shutil.copytree(tiny_run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "young" / "metrics.json").unlink()
    code, out, err = tool("results")
    assert code == 0 and "left out runs/young: it has no metric yet" in err
    assert out == (tmp_path / "docs" / "results.md").read_text() + "\n"
