"""The results: one row a recipe, with what was published and what was wanted."""

import json
import shutil
from dataclasses import replace

import pytest

from saccade.errors import RecipeError
from saccade.zoo.recipes import registry as finding
from saccade.zoo.recipes.results import (
    gather_results,
    read_results,
    results_page,
    row_of,
    write_results,
)
from saccade.zoo.training.run_folder import RunFolder

KEYS = ["recipe", "metric", "value", "published", "source", "minutes", "command", "commit", "note"]


@pytest.fixture
def changed_run(tiny_run, tmp_path):
    """A copy of the run with other figures."""

    def make(name, **figures):
        shutil.copytree(tiny_run, tmp_path / name)
        folder = RunFolder(tmp_path / name)
        folder.write_figures({**folder.figures, **figures})
        return tmp_path / name

    return make


def test_a_row_has_the_figure_the_published_one_and_how_to_get_it(tiny, tiny_run):
    row = row_of(tiny_run, {"tiny-mirror": tiny})
    assert row.value == round(RunFolder(tiny_run).figures["value"], 4)
    assert (row.published, row.source) == (1.0, "a mirror")
    assert row.command == "saccade train tiny-mirror --set training.epochs=12"
    assert row.note == "Wanted: at least 0.9. Ours is younger."


def test_what_was_not_reached_is_said(tiny, changed_run):
    folder = changed_run("low", value=0.5)
    assert "at least 0.9; **not reached**." in row_of(folder, {"tiny-mirror": tiny}).note
    less = replace(tiny, is_better="less", at_least=0.4)
    assert "at most 0.4; **not reached**." in row_of(folder, {"tiny-mirror": less}).note


def test_figures_beside_the_recipes_own_are_told_with_what_was_wanted_of_them(tiny, changed_run):
    folder = changed_run("more", test={"low": 0.25, "high": 0.95, "alone": 3.0})
    beside = replace(tiny, beside={"low": 0.5, "high": 0.9, "alone": None, "left out": None})
    told = "`low`: 0.25 (wanted: at least 0.5; **not reached**), `high`: 0.95 (wanted: at least 0.9"
    told += "), `alone`: 3."
    note = row_of(folder, {"tiny-mirror": beside}).note
    assert note == f"Wanted: at least 0.9. {told} Ours is younger."


def test_of_several_runs_the_last_counts_and_rows_of_before_stay(tiny, changed_run, tmp_path):
    old = changed_run("b", value=0.25, evaluated="2020-01-01")
    new = changed_run("a", value=0.75, evaluated="2021-01-01")
    kept = [replace(row_of(old, {"tiny-mirror": tiny}), recipe="zebra")]
    rows = gather_results([new, old], kept=kept)
    assert [(row.recipe, row.value) for row in rows] == [("tiny-mirror", 0.75), ("zebra", 0.25)]
    write_results(tmp_path / "docs", rows)
    assert read_results(tmp_path / "docs") == rows
    held = json.loads((tmp_path / "docs" / "results.json").read_text())
    assert [list(row) for row in held] == [KEYS, KEYS]


def test_the_page_has_a_line_for_each_and_its_cells_stay_cells(tiny, tiny_run):
    row = replace(row_of(tiny_run, {"tiny-mirror": tiny}), note="a | b\nc", published=None)
    page = results_page([row])
    assert page.splitlines()[-1].endswith(r"| a \| b c |")
    assert len({line.replace(r"\|", "").count("|") for line in page.splitlines()[-3:]}) == 1
    assert "`saccade train tiny-mirror --set training.epochs=12`" in page


def test_an_ensemble_has_a_row_of_its_own(tiny, changed_run, tmp_path):
    one, together = RunFolder(changed_run("one", value=0.95)), RunFolder(tmp_path / "together")
    together.begin({**one.manifest, "runs": ["a", "b", "c"]}, {})
    together.write_figures(one.figures)
    row = row_of(together.path, {"tiny-mirror": tiny})
    assert row.recipe == "tiny-mirror x 3" and row.published is None
    assert row.note == "An ensemble of 3 runs."


def test_what_cannot_be_a_row_is_refused(tiny, tiny_run, tmp_path, monkeypatch):
    shutil.copytree(tiny_run, tmp_path / "young")
    (tmp_path / "young" / "figures.json").unlink()
    with pytest.raises(RecipeError, match="young has no figure yet"):
        gather_results([tmp_path / "young"])
    monkeypatch.setattr(finding, "_REGISTERED", {})
    with pytest.raises(RecipeError, match="is a run of tiny-mirror, which is not known here"):
        gather_results([tiny_run])
    (tmp_path / "results.json").write_text('[{"recipe": 1}]')
    with pytest.raises(RecipeError, match=r"results.json cannot be read"):
        read_results(tmp_path)
    assert read_results(tmp_path / "nowhere") == []
