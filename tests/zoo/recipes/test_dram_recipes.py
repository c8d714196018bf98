"""Recipes of DRAM: what is asked, what counts as right, and that small ones run to a metric."""

import functools

import pytest
import torch

from saccade.errors import RecipeError
from saccade.zoo.recipes.dram_recipes import END, errors, targets
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.mnist import Digits, ImageBatch
from saccade.zoo.training.settings import with_settings

SHORT = ["d_hidden=16", "batch=16", "steps=4", "warmup=1", "validate_steps=4", "log_steps=2"]
SMALL = ["size=84", "n_glimpses=2", "patch=8", "n_scales=2", "n_clutter=1"]


def answers(*rows, n_classes=11):
    return torch.eye(n_classes)[torch.tensor(rows)]


def scenes(labels):
    """Images are the numbers of their rows, so that an answer can be looked up."""
    images = torch.arange(float(len(labels)))[:, None, None]
    return [ImageBatch(images, torch.tensor(labels), torch.zeros(len(labels), 2, 4))]


def test_targets_are_the_digits_in_the_order_of_reading_and_no_more():
    recipe = find_recipe("dram-pairs").settings
    labels = torch.tensor([[3, 8], [0, 5]])
    assert targets(labels, recipe).tolist() == [[3, 8, END], [0, 5, END]]
    backward = with_settings(recipe, ["is_backward=true"])
    assert targets(labels, backward).tolist() == [[8, 3, END], [5, 0, END]]
    added = find_recipe("dram-addition").settings
    assert targets(torch.tensor([11, 5]), added).tolist() == [[11], [5]]


def test_both_digits_must_be_right_and_their_order_is_a_metric_of_its_own():
    said = answers([3, 8, END], [8, 3, END], [3, 3, END], [3, END, 8], [3, 8, 1])
    found = errors(
        scenes([[3, 8]] * 5),
        lambda images: said[images.flatten().long()],
        settings=find_recipe("dram-pairs").settings,
    )
    assert found == {"error": 60.0, "error_ordered": 80.0}


def test_a_sum_of_ten_is_no_end():
    said = answers([10], [10], n_classes=19)
    found = errors(
        scenes([10, 9]),
        lambda images: said[images.flatten().long()],
        settings=find_recipe("dram-addition").settings,
    )
    assert found == {"error": 50.0}


@pytest.fixture
def few(data_with, monkeypatch):
    """The real digits, a part of them."""
    from saccade.zoo.recipes import dram_recipes, mnist_scenes
    from saccade.zoo.tasks.mnist import read_mnist

    @functools.cache  # unpacking takes longer than the training here
    def read(part, data=None):
        digits = read_mnist(part, data)
        return Digits(digits.images[:64], digits.labels[:64])

    monkeypatch.setenv("SACCADE_DATA", str(data_with("mnist")))
    monkeypatch.setattr(dram_recipes, "read_mnist", read)
    monkeypatch.setattr(mnist_scenes, "read_mnist", read)


def trained(name, folder, *changes):
    recipe = find_recipe(name)
    settings = with_settings(recipe.settings, [*SHORT, *SMALL, *changes])
    return train_recipe(recipe, folder, settings=settings)


def test_a_forward_and_a_backward_reader_are_evaluated_together(few, tmp_path):
    metrics = trained("dram-pairs", tmp_path / "forward")
    assert set(metrics["test"]) == {
        "error",
        "error_ordered",
        *find_recipe("dram-pairs").other_metrics,
    }
    trained("dram-pairs", tmp_path / "backward", "is_backward=true")
    both = load_run([tmp_path / "forward", tmp_path / "backward"])
    assert [model.is_backward for model in both.models] == [False, True]
    assert set(evaluate_run(both)["test"]) == {"error", "error_ordered"}
    trained("dram-pairs", tmp_path / "other", "n_clutter=0")
    with pytest.raises(RecipeError, match="n_clutter"):
        load_run([tmp_path / "forward", tmp_path / "other"])


def test_the_gaze_over_two_digits_is_traced_with_an_answer_after_every_glimpse(few, tmp_path):
    trained("dram-addition", tmp_path / "run")
    run = load_run(tmp_path / "run")
    (trace,) = run.recipe.trace(run, "5")
    assert len(trace.steps) == 2 and all(step.endswith("%") for step in trace.steps)
    assert trace.outlines.shape == (2, 2, 4, 2) and set(trace.pictures) == {"scale 1", "scale 2"}
