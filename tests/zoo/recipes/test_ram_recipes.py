"""Recipes of RAM and its controls: small ones are learnt, and metrics are what they say."""

import functools
import json

import pytest
import torch
from PIL import Image

from saccade.errors import UsageError
from saccade.zoo.recipes.mnist_scenes import gaze, held_out, one_image
from saccade.zoo.recipes.ram_recipes import scene_of
from saccade.zoo.recipes.recipe import InputFile, find_recipe
from saccade.zoo.recipes.run import load_run, train_recipe
from saccade.zoo.sensors.retina import Retina
from saccade.zoo.tasks.mnist import Digits, Scene, Scenes
from saccade.zoo.training.settings import TrainConfig, with_settings

SHORT = ["n_glimpses=3", "d_hidden=48", "d_glimpse=32", "steps=120", "warmup=10", "batch=64"]
QUICK = ["learning_rate=3e-3", "validate_steps=60", "log_steps=20"]


@pytest.fixture(scope="module")
def few(data_with):
    """The real digits, a part of them."""
    from saccade.zoo.recipes import mnist_scenes, ram_recipes
    from saccade.zoo.tasks.mnist import read_mnist

    @functools.cache  # unpacking takes longer than the training here
    def read(part, data=None):
        digits = read_mnist(part, data)
        return Digits(digits.images[:1500], digits.labels[:1500])

    patch = pytest.MonkeyPatch()
    patch.setenv("SACCADE_DATA", str(data_with("mnist")))
    patch.setattr(ram_recipes, "read_mnist", read)
    patch.setattr(mnist_scenes, "read_mnist", read)
    yield read
    patch.undo()


@pytest.fixture(scope="module")
def ram(few, tmp_path_factory):
    recipe, folder = find_recipe("ram-mnist"), tmp_path_factory.mktemp("runs") / "ram"
    settings = with_settings(recipe.settings, [*SHORT, *QUICK, "steps=300"])
    return folder, train_recipe(recipe, folder, settings=settings)


def test_digits_are_learnt_from_a_few_glimpses_and_the_metric_counts_the_wrong_ones(ram, few):
    folder, metrics = ram
    assert metrics["value"] < 50  # chance is 90
    run, test = load_run(folder), few("test")
    with torch.no_grad():
        named = torch.cat(
            [run.model(image[None].float() / 255).argmax(-1) for image in test.images[:300]]
        )
    wrong = (named != test.labels[:300]).float().mean().item() * 100
    assert metrics["value"] == pytest.approx(wrong, abs=12)
    assert set(metrics["test"]) == {"error", *run.recipe.other_metrics}


def _validated(line):
    return line["validation"]["error"]


def test_the_spread_falls_while_it_learns(ram):
    folder, _ = ram
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert any("reward" in line for line in lines)
    run = load_run(folder)
    first, last = run.settings.first_std, run.settings.last_std
    # The weights of the best validation are kept, with the spread of their step.
    best = min((each for each in lines if "validation" in each), key=_validated)
    expected = first + best["step"] / 300 * (last - first)
    assert run.model.std.item() == pytest.approx(expected, abs=1e-3) and expected < 0.9 * first


def test_the_gaze_of_a_trained_model_is_traced(ram):
    folder, _ = ram
    run = load_run(folder)
    (trace,) = run.recipe.trace(run, "7")
    image = one_image("7", held_out("test", scene_of(run.settings), None))
    assert trace.kind == "gaze" and torch.equal(trace.image, image[0])
    looked = run.model.look(image, is_drawn=False)
    torch.testing.assert_close(trace.centres, looked.centres[0, 0])
    side = trace.outlines[0, 0, 1, 0] - trace.outlines[0, 0, 0, 0]
    assert side.item() == pytest.approx(2 * 8 / 28)
    assert trace.pictures["scale 1"].shape == (3, 8, 8)
    digit, share = trace.steps[-1].split()
    best = looked.logits[0, 0, -1].softmax(-1).max(-1)
    assert int(digit) == best.indices and share == f"{best.values.item():.0%}"


@pytest.mark.parametrize(
    "name", ["ram-cluttered60-random", "ram-mnist-central", "fc-mnist", "conv-cluttered60"]
)
def test_controls_are_trained_and_evaluated_too(name, few, tmp_path):
    recipe = find_recipe(name)
    own = [word for word in SHORT if "glimpse" not in word or name.startswith("ram")]
    settings = with_settings(recipe.settings, [*own, "steps=3", "warmup=1", "validate_steps=3"])
    metrics = train_recipe(recipe, tmp_path / "run", settings=settings)
    assert 50 < metrics["value"] <= 100


@pytest.mark.parametrize(
    "name",
    ["ram-mnist", "ram-translated60", "ram-cluttered60", "ram-cluttered100", "fc-translated60"],
)
def test_every_recipe_makes_a_model_for_its_images(name):
    recipe = find_recipe(name)
    size = recipe.settings.size
    images = torch.rand(2, size, size, generator=torch.Generator().manual_seed(0))
    said = recipe.restore(recipe.settings, {}).eval()(images)
    assert said.shape == (2, 10) and not torch.allclose(said[0], said[1])
    assert isinstance(recipe.settings.training, TrainConfig) and recipe.settings.training.steps


def test_an_image_file_is_read_and_others_are_refused(few, tmp_path):
    scenes = held_out("test", Scene(), None)
    grey = Image.fromarray(few("test").images[3].numpy())
    grey.save(tmp_path / "grey.png")
    torch.testing.assert_close(
        one_image(InputFile.read(tmp_path / "grey.png"), scenes), one_image("3", scenes)
    )
    grey.convert("RGB").save(tmp_path / "colour.png")
    with pytest.raises(UsageError, match=r"expected a grey image, .* has colours \(RGB\)"):
        one_image(InputFile.read(tmp_path / "colour.png"), scenes)
    with pytest.raises(UsageError, match=r"expected an image of 60 x 60 pixels, .* has 28 x 28"):
        one_image(InputFile.read(tmp_path / "grey.png"), held_out("test", Scene(size=60), None))
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(UsageError, match="is no image"):
        one_image(InputFile.read(tmp_path / "text.png"), scenes)
    # A plain text is no path, whatever file there is.
    with pytest.raises(UsageError, match="a test image or an image file, got"):
        one_image(str(tmp_path / "grey.png"), scenes)


def test_a_number_that_no_image_has_and_a_file_that_is_not_there_are_refused(few):
    scenes = held_out("test", Scene(), None)
    with pytest.raises(UsageError, match="number of a test image, 0 to 1499, got 1500"):
        one_image("1500", scenes)
    with pytest.raises(UsageError, match="a test image or an image file, got"):
        one_image("x.png", scenes)


def test_test_scenes_are_always_the_same_and_not_those_of_validation(few):
    scene = Scene(size=60, n_clutter=4)
    one, again = held_out("test", scene, None), held_out("test", scene, None)
    assert isinstance(one, Scenes) and torch.equal(one[1].images, again[1].images)
    assert not torch.equal(one[0].windows, held_out("valid", scene, None)[0].windows)


def test_a_gaze_over_several_scales_has_a_window_for_each():
    centres = torch.tensor([[0.0, 0.0], [0.5, -0.5]])
    trace = gaze(Retina(size=12, n_scales=3), torch.rand(60, 60), centres, steps=("a", "b"))
    widths = (trace.outlines[0, :, 1, 0] - trace.outlines[0, :, 0, 0]) * 30
    torch.testing.assert_close(widths, torch.tensor([12.0, 24.0, 48.0]))
    torch.testing.assert_close(trace.centres, centres)
    assert list(trace.pictures) == ["scale 1", "scale 2", "scale 3"]
