"""DRAW in little: trained, evaluated by its bound, and watched while it draws."""

import pytest
import torch

from saccade.trace.trace import load_trace, save_trace
from saccade.zoo.objectives.variational import bernoulli_elbo
from saccade.zoo.recipes.draw_mnist import bound_of
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.tasks.datasets import generator_of
from saccade.zoo.tasks.mnist import TEST_SEED, binarise, read_mnist
from saccade.zoo.training.settings import with_settings

STEPS = 3


@pytest.fixture(scope="module")
def runs(tmp_path_factory, little_mnist):
    made = {}

    def run(name):
        if name not in made:
            recipe, folder = find_recipe(name), tmp_path_factory.mktemp("runs") / name
            words = [f"n_steps={STEPS}", "d_hidden=16", "d_latent=4", "batch=13", "epochs=3"]
            settings = with_settings(recipe.settings, [*words, "warmup=2", "learning_rate=0.01"])
            made[name] = folder, train_recipe(recipe, folder, settings=settings)
        return made[name]

    return run


@pytest.mark.parametrize("name", ["draw-mnist", "draw-mnist-noattention"])
def test_the_metric_is_the_bound_on_test_digits_drawn_once(runs, name):
    folder, metrics = runs(name)
    test = metrics["test"]
    assert test["nats"] == pytest.approx(test["reconstruction"] + test["latent"], rel=1e-5)
    model = load_run(folder).model
    images = binarise(read_mnist("test").images, generator_of(TEST_SEED, 0))
    parts = []
    for _ in range(20):  # the bound is a mean over latents: one sample of it is near the others
        drawn = model(images)
        parts.append(bernoulli_elbo(drawn.canvases[-1], images, kl=drawn.kl).loss)
    samples = torch.stack(parts)
    assert abs(test["nats"] - samples.mean()) < 6 * samples.std() + 0.1


def test_the_bound_of_parts_is_the_bound_of_the_whole(runs, monkeypatch):
    model = load_run(runs("draw-mnist")[0]).model
    model.latent.weight.data[4:] = 0  # hardly any noise, so that both draw the same
    model.latent.bias.data[4:] = -20
    images = binarise(read_mnist("test").images, generator_of(0, 0))
    whole = bound_of(model, images)
    monkeypatch.setattr("saccade.zoo.recipes.draw_mnist.AT_ONCE", 11)
    assert bound_of(model, images) == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize(("name", "windows"), [("draw-mnist", 2), ("draw-mnist-noattention", 0)])
def test_a_digit_drawn_again_shows_the_canvas_growing(runs, tmp_path, name, windows):
    run = load_run(runs(name)[0])
    (trace,) = run.recipe.trace(run, "5")
    assert trace.outlines.shape == (STEPS, windows, 4, 2)
    assert set(trace.image.flatten().tolist()) == {0.0, 1.0}
    canvas = trace.pictures["canvas"]
    assert canvas.shape == (STEPS, 28, 28) and canvas.min() >= 0 and canvas.max() <= 1
    torch.testing.assert_close(trace.image_at(1), canvas[1])
    told = [int(step.removesuffix(" nats")) for step in trace.steps]
    assert told == sorted(told)  # a stroke takes nothing back
    latent = torch.stack([run.model(trace.image[None]).kl.sum() for _ in range(9)])
    assert latent.min() - 1 < told[-1] < latent.max() + 1
    save_trace(tmp_path / "trace", trace)
    torch.testing.assert_close(load_trace(tmp_path / "trace").pictures["canvas"], canvas)


def test_samples_are_the_same_for_the_same_seed(runs):
    run = load_run(runs("draw-mnist")[0])
    (one,), (again,), (other,) = (
        run.recipe.trace(run, text) for text in ("sample 1", "sample 1", "sample 2")
    )
    assert one.image.shape == (4 * 28, 4 * 28)
    torch.testing.assert_close(one.image, again.image)
    assert not torch.equal(one.image, other.image)
