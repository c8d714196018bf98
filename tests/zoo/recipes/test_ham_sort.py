"""Sorting by a tree: little of it is learnt in seconds, and metrics are what they say."""

import pytest

from saccade.errors import UsageError
from saccade.zoo.recipes import ham_sort
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.tasks.memory_tasks import sort_batch
from saccade.zoo.training.settings import with_settings

SMALL = ["d_bits=2", "lengths=1,3", "tested=3,4", "d_node=16", "d_hidden=16", "n_test=40"]
QUICK = ["steps=300", "n_valid=20", "learning_rate=0.01", "warmup=10", "validate_steps=100"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    recipe, folder = find_recipe("ham-sort"), tmp_path_factory.mktemp("runs") / "ham"
    settings = with_settings(recipe.settings, [*SMALL, *QUICK])
    return folder, train_recipe(recipe, folder, settings=settings)


def test_metrics_count_items_and_sequences_that_are_right(trained):
    folder, metrics = trained
    run = load_run(folder)
    test = sort_batch(3, lengths=(3, 3), batch=40, seed=ham_sort.TEST_SEED, d_bits=2)
    right = [
        [bool(((said > 0) == (wanted > 0)).all()) for said, wanted in zip(*both, strict=True)]
        for both in zip(run.model(test.items), test.targets, strict=True)
    ]
    items = 100 * sum(map(sum, right)) / 120
    assert metrics["test"]["items_3"] == pytest.approx(items, rel=1e-4)
    assert metrics["test"]["sequences_3"] == pytest.approx(100 * sum(map(all, right)) / 40)
    assert items > 20  # of four bits each: guessing has 6


def test_the_walk_is_traced_over_the_given_keys(trained):
    run = load_run(trained[0])
    (trace,) = run.recipe.trace(run, "3 0 2")
    assert trace.kind == "tree-search" and trace.memory == ("3", "0", "2")
    assert len(trace.steps) == 3 and trace.weights.shape == (3, 3)
    assert (trace.weights.sum(-1) <= 1 + 1e-5).all()


@pytest.mark.parametrize("text", ["", "1 two", "4", "-1"])
def test_other_texts_are_refused(text, trained):
    run = load_run(trained[0])
    with pytest.raises(UsageError, match="expected keys from 0 to 3"):
        run.recipe.trace(run, text)


def test_the_recipe_has_a_model_for_its_task(learns_from):
    recipe = find_recipe("ham-sort")
    job = recipe.build(with_settings(recipe.settings, ["batch=2", "n_valid=2"]), None)
    batch = next(iter(job.batches_of(0, 0)))
    assert learns_from(job, batch)
