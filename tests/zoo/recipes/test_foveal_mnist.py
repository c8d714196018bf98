"""The recipe of the foveal Boltzmann machine: a small one is learnt, evaluated and traced."""

import functools

import pytest
import torch

from saccade.zoo.recipes.mnist_scenes import held_out, one_image
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.tasks.mnist import Digits, Scene
from saccade.zoo.training.settings import with_settings

SHORT = ["n_glimpses=3", "side=5", "d_hidden=64", "d_factor=64", "steps=300", "warmup=10"]
QUICK = ["batch=64", "learning_rate=5e-3", "validate_steps=100", "log_steps=20"]


@pytest.fixture(scope="module")
def few(data_with):
    """The real digits, a part of them."""
    from saccade.zoo.recipes import foveal_mnist, mnist_scenes
    from saccade.zoo.tasks.mnist import read_mnist

    @functools.cache  # unpacking takes longer than the training here
    def read(part, data=None):
        digits = read_mnist(part, data)
        return Digits(digits.images[:1500], digits.labels[:1500])

    patch = pytest.MonkeyPatch()
    patch.setenv("SACCADE_DATA", str(data_with("mnist")))
    patch.setattr(foveal_mnist, "read_mnist", read)
    patch.setattr(mnist_scenes, "read_mnist", read)
    yield read
    patch.undo()


@pytest.fixture(scope="module")
def foveal(few, tmp_path_factory):
    recipe, folder = find_recipe("foveal-mnist"), tmp_path_factory.mktemp("runs") / "foveal"
    settings = with_settings(recipe.settings, [*SHORT, *QUICK])
    return folder, train_recipe(recipe, folder, settings=settings)


def test_digits_are_learnt_and_the_metric_counts_the_wrong_ones(foveal, few):
    folder, metrics = foveal
    assert metrics["value"] < 60  # chance is 90
    run, test = load_run(folder), few("test")
    with torch.no_grad():
        named = run.model(test.images.float() / 255).argmax(-1)
    wrong = (named != test.labels).float().mean().item() * 100
    assert metrics["value"] == pytest.approx(wrong, abs=0.2)
    assert set(metrics["test"]) == {"error", *run.recipe.other_metrics}


def test_the_gaze_of_a_trained_machine_is_traced(foveal):
    folder, _ = foveal
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, "7")
    image = one_image("7", held_out("test", Scene(), None))
    assert trace.kind == "gaze" and torch.equal(trace.image, image[0])
    looked = run.model.look(image)
    torch.testing.assert_close(trace.centres, run.model.places[looked.places[0]])
    assert trace.pictures["scale 2"].shape == (3, 8, 8)
    digit, share = trace.steps[-1].split()
    best = run.model(image)[0].softmax(-1).max(-1)
    assert int(digit) == best.indices and share == f"{best.values.item():.0%}"


def test_the_recipe_makes_a_model_for_digits_and_the_other_cost_is_trained_too(few, tmp_path):
    recipe = find_recipe("foveal-mnist")
    assert recipe.restore(recipe.settings, {})(torch.zeros(2, 28, 28)).shape == (2, 10)
    words = [*SHORT, *QUICK, "is_sequential=no", "steps=3", "validate_steps=3"]
    settings = with_settings(recipe.settings, words)
    metrics = train_recipe(recipe, tmp_path / "run", settings=settings)
    test = few("test")
    with torch.no_grad():
        named = load_run(tmp_path / "run").model(test.images.float() / 255).argmax(-1)
    wrong = (named != test.labels).float().mean().item() * 100
    assert metrics["value"] == pytest.approx(wrong, abs=0.2)
