"""Systems that find and name a digit, in little: trained, evaluated, and traced as they look."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.recipes.mnist_scenes import held_out
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.mnist import Scene
from saccade.zoo.training.settings import with_settings

SIZE = 40
SMALL = {
    "diffram-cluttered100": ["n_glimpses=3", "d_hidden=16"],
    "stn-cluttered60": ["channels=4,6", "d_hidden=8"],
    "stn-multi-cluttered60": ["channels=4,6", "d_hidden=8"],
    "edram-cluttered100": ["n_glimpses=2", "channels=4,6", "d_hidden=16"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, little_mnist):
    made = {}

    def run(name):
        if name not in made:
            recipe, folder = find_recipe(name), tmp_path_factory.mktemp("runs") / name
            words = [
                *SMALL[name],
                f"size={SIZE}",
                "n_clutter=2",
                "batch=13",
                "epochs=2",
                "warmup=2",
            ]
            metrics = train_recipe(recipe, folder, settings=with_settings(recipe.settings, words))
            made[name] = folder, metrics
        return made[name]

    return run


@pytest.mark.parametrize("name", SMALL)
def test_the_metric_is_the_share_of_wrong_names(runs, name):
    folder, metrics = runs(name)
    run = load_run(folder)
    wrong, n = 0, 0
    for batch in held_out("test", Scene(size=SIZE, n_clutter=2), None):
        for image, label in zip(batch.images, batch.labels, strict=True):
            wrong += run.model(image[None]).argmax().item() != label.item()
            n += 1
    assert n == 37 and metrics["value"] == pytest.approx(100 * wrong / n)
    assert evaluate_run(run)["value"] == pytest.approx(metrics["value"])


@pytest.mark.parametrize("name", SMALL)
def test_a_trace_shows_each_look_and_what_would_be_answered(runs, name):
    run = load_run(runs(name)[0])
    (trace,) = run.recipe.trace(run, "3")
    image = held_out("test", Scene(size=SIZE, n_clutter=2), None)[0].images[3]
    torch.testing.assert_close(trace.image, image)
    assert len(trace.steps) == getattr(run.settings, "n_glimpses", 1)
    sure = run.model(image[None]).softmax(-1)[0]
    assert trace.steps[-1] == f"{sure.argmax().item()} {sure.max().item():.0%}"
    (pictures,) = trace.pictures.values()
    assert len(pictures) == len(trace.steps) and pictures.min() >= 0 and pictures.max() <= 1.001


@pytest.mark.parametrize("name", SMALL)
def test_an_image_that_is_not_there_is_refused(runs, name):
    run = load_run(runs(name)[0])
    with pytest.raises(UsageError, match="0 to 36, got 37"):
        run.recipe.trace(run, "37")


def test_edram_is_told_where_the_digit_is(runs):
    """The loss knows the window of the digit: a model that looks exactly there has no such part."""
    from saccade.zoo.models.edram import Glimpsed, edram_loss
    from saccade.zoo.sensors.spatial_transformer import warp, window_theta

    batch = held_out("test", Scene(size=SIZE), None)[0]
    theta = window_theta(batch.windows[:, 0])
    shown = warp(batch.images[:, None], theta, height=28, width=28)[:, 0]
    digits = held_out("test", Scene(), None)[0].images
    torch.testing.assert_close(shown, digits, rtol=0, atol=1e-3)
    looked = Glimpsed(torch.zeros(37, 1, 10), theta[:, None], ())
    assert edram_loss(looked, batch.labels, theta=theta, place_weight=1.0).placed == 0


def test_localisation_learns_more_slowly(little_mnist):
    recipe = find_recipe("stn-cluttered60")
    job = recipe.build(with_settings(recipe.settings, ["slower=0.25"]), None)
    assert job.rates["localisation."] == 0.25
