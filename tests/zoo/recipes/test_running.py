"""A recipe is run, its run opened again without its data, and its result told."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from saccade.errors import RecipeError, StoreError, TrainingError, UsageError
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import (
    TrainedRun,
    command_for,
    evaluate_run,
    load_run,
    result_of,
    settings_of_run,
    train_recipe,
    write_ensemble,
)
from saccade.zoo.training.loop import train
from saccade.zoo.training.run_folder import RunFolder
from saccade.zoo.training.settings import with_settings


def run_of(tiny, folder, *words):
    train_recipe(tiny, folder, settings=with_settings(tiny.settings, ["epochs=1", *words]))
    return folder


def test_a_run_leaves_its_metric(tiny, tiny_run):
    metrics = RunFolder(tiny_run).metrics
    assert metrics["recipe"] == "tiny-mirror" and metrics["metric"] == "right"
    assert metrics["value"] == metrics["test"]["right"] > 0.8
    manifest = RunFolder(tiny_run).manifest
    assert manifest["settings"]["training"]["epochs"] == 12 and "config" not in manifest
    assert manifest["command"] == "saccade train tiny-mirror --set training.epochs=12"


def test_an_opened_run_gives_the_same_metric(tiny, tiny_run):
    run = load_run(tiny_run)
    assert run.recipe is tiny and run.settings.training.epochs == 12
    assert not run.model.training and not any(w.requires_grad for w in run.model.parameters())
    assert evaluate_run(run)["value"] == RunFolder(tiny_run).metrics["value"]


def test_the_same_seed_gives_the_same_run_and_another_another(tiny, tmp_path):
    folders = [
        run_of(tiny, tmp_path / name, f"seed={seed}")
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, again, other = (load_run(folder).model.state_dict() for folder in folders)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())


def test_several_runs_are_used_together(tiny, tmp_path):
    folders = [run_of(tiny, tmp_path / f"s{seed}", f"seed={seed}") for seed in (1, 2, 3)]
    run = load_run(folders)
    assert len(run.models) == 3
    with pytest.raises(RecipeError, match="tiny-mirror cannot do this with 3 runs together"):
        run.model  # noqa: B018
    write_ensemble(tmp_path / "all", folders, evaluate_run(run))
    manifest = RunFolder(tmp_path / "all").manifest
    assert manifest["runs"] == ["s1", "s2", "s3"]
    train_one = "saccade train tiny-mirror --set training.epochs=1 --set training.seed=1"
    assert manifest["command"].startswith(f"{train_one} --out runs/tiny-mirror-1 && saccade train")
    assert manifest["command"].endswith(
        "&& saccade eval " + " ".join(f"runs/tiny-mirror-{number}" for number in (1, 2, 3))
    )
    with pytest.raises(TrainingError, match="all exists already"):
        write_ensemble(tmp_path / "all", folders, {})
    wider = run_of(tiny, tmp_path / "wide", "d_model=17")
    with pytest.raises(RecipeError, match="d_model: the run has 13, asked for is 17"):
        load_run([folders[0], wider])
    other = run_of(tiny, tmp_path / "other", "letters=xyz")
    with pytest.raises(RecipeError, match="what they kept differs"):
        load_run([folders[0], other])


def test_a_run_that_is_there_is_refused_before_any_data_is_read(tiny, tiny_run, monkeypatch):
    def build(self, settings, data):
        raise AssertionError("minutes are spent")

    monkeypatch.setattr(type(tiny), "build", build)
    with pytest.raises(TrainingError, match="exists already"):
        train_recipe(tiny, tiny_run)


def test_a_book_is_no_sentence(tiny_run):
    run = load_run(tiny_run)
    for ask in (run.trace, lambda text: run.translate(["a", text])):
        with pytest.raises(UsageError, match="at most 5,000 characters at once, got 5,001"):
            ask("a" * 5001)


def test_the_settings_of_a_run_are_found_again(tiny, tiny_run, tmp_path):
    assert settings_of_run(tiny, tiny_run).training.epochs == 12
    assert settings_of_run(tiny, tmp_path / "new") == tiny.settings
    with pytest.raises(RecipeError, match="tiny is a run of tiny-mirror, not of other"):
        settings_of_run(replace(tiny, name="other"), tiny_run)


def test_the_command_says_what_differs_and_can_be_pasted(tiny):
    words = ["letters=a b", "betas=0.5,0.6", "training.minutes=3"]
    settings = with_settings(tiny.settings, words)
    assert command_for(tiny, settings) == (
        "saccade train tiny-mirror --set 'letters=a b' --set training.minutes=3.0 "
        "--set training.betas=0.5,0.6"
    )
    assert command_for(tiny, tiny.settings, n_processes=2) == (
        "torchrun --nproc-per-node=2 -m saccade train tiny-mirror"
    )


def test_what_is_no_finished_run_of_a_recipe_is_refused(tiny, tiny_run, tmp_path):
    with pytest.raises(TrainingError, match=r"nothing is no run of saccade: no such folder"):
        load_run(tmp_path / "nothing")
    shutil.copytree(tiny_run, tmp_path / "young")
    shutil.rmtree(tmp_path / "young" / "best")
    with pytest.raises(TrainingError, match="young has no weights yet"):
        load_run(tmp_path / "young")
    shutil.copytree(tiny_run, tmp_path / "odd")
    manifest = json.loads((tmp_path / "odd" / "manifest.json").read_text())
    del manifest["sha256"]  # as an earlier version wrote it
    (tmp_path / "odd" / "manifest.json").write_text(json.dumps({**manifest, "recipe": "gone"}))
    with pytest.raises(RecipeError, match="there is no recipe 'gone'"):
        load_run(tmp_path / "odd")
    (tmp_path / "odd" / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(TrainingError, match="odd has format 99, this saccade reads up to 1"):
        load_run(tmp_path / "odd")
    (tmp_path / "odd" / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest.json is damaged: expected JSON"):
        load_run(tmp_path / "odd")


def test_a_run_without_a_recipe_is_for_the_code_that_made_it(tiny, tmp_path):
    train(tiny.build(with_settings(tiny.settings, ["epochs=1"]), None), tmp_path / "run")
    with pytest.raises(RecipeError, match="run was not made by a recipe"):
        load_run(tmp_path / "run")


def test_a_recipe_that_does_not_give_its_metric_says_so(tiny, tiny_run):
    run = load_run(tiny_run)
    odd = replace(find_recipe("tiny-mirror"), metric="bleu")
    other = TrainedRun(recipe=odd, settings=run.settings, kept=run.kept, models=run.models)
    with pytest.raises(RecipeError, match="gives no 'bleu', it gives right, letters"):
        evaluate_run(other)


@pytest.fixture
def changed_run(tiny_run, tmp_path):
    """A copy of the run with other metrics."""

    def make(name, **metrics):
        shutil.copytree(tiny_run, tmp_path / name)
        folder = RunFolder(tmp_path / name)
        folder.write_metrics({**folder.metrics, **metrics})
        return tmp_path / name

    return make


def test_a_result_has_the_metric_the_published_one_and_how_to_get_it(tiny, tiny_run):
    row = result_of(tiny_run, {"tiny-mirror": tiny})
    assert row.value == round(RunFolder(tiny_run).metrics["value"], 4)
    assert (row.published, row.source) == (1.0, "a mirror")
    assert row.command == "saccade train tiny-mirror --set training.epochs=12"
    assert row.note == "Target: at least 0.9. Ours is younger."


def test_what_was_not_reached_is_said(tiny, changed_run):
    folder = changed_run("low", value=0.5)
    assert "at least 0.9; **not reached**." in result_of(folder, {"tiny-mirror": tiny}).note
    less = replace(tiny, is_better="less", target=0.4)
    assert "at most 0.4; **not reached**." in result_of(folder, {"tiny-mirror": less}).note


def test_metrics_beside_the_recipes_own_are_told_with_what_was_wanted_of_them(tiny, changed_run):
    folder = changed_run("more", test={"low": 0.25, "high": 0.95, "alone": 3.0})
    beside = replace(tiny, other_metrics={"low": 0.5, "high": 0.9, "alone": None, "left out": None})
    told = "`low`: 0.25 (target: at least 0.5; **not reached**), `high`: 0.95 (target: at least 0.9"
    told += "), `alone`: 3."
    note = result_of(folder, {"tiny-mirror": beside}).note
    assert note == f"Target: at least 0.9. {told} Ours is younger."


def test_an_ensemble_has_a_result_of_its_own(tiny, changed_run, tmp_path):
    one, together = RunFolder(changed_run("one", value=0.95)), RunFolder(tmp_path / "together")
    together.begin({**one.manifest, "runs": ["a", "b", "c"]}, {})
    together.write_metrics(one.metrics)
    row = result_of(together.path, {"tiny-mirror": tiny})
    assert row.recipe == "tiny-mirror x 3" and row.published is None
    assert row.note == "An ensemble of 3 runs."


def test_what_has_no_result_is_refused(tiny, tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "young")
    (tmp_path / "young" / "metrics.json").unlink()
    with pytest.raises(RecipeError, match="young has no metric yet"):
        result_of(tmp_path / "young", {"tiny-mirror": tiny})
    with pytest.raises(RecipeError, match="is a run of tiny-mirror, which is not known here"):
        result_of(tiny_run, {})
