"""A trace over an image by commands alone: traced by a recipe, kept, drawn still and moving."""

from dataclasses import replace

import pytest
import torch
from PIL import Image


@pytest.fixture
def trained(tmp_path):
    """A run of a recipe that looks at images; nothing is learnt and no data is read."""
    from saccade.zoo.models.ram import Ram
    from saccade.zoo.recipes.mnist_scenes import gaze
    from saccade.zoo.recipes.ram_recipes import RamRecipe
    from saccade.zoo.recipes.recipe import find_recipe, register_recipe
    from saccade.zoo.training.job import Job, LossOut
    from saccade.zoo.training.loop import train
    from saccade.zoo.training.settings import with_settings

    recipe = find_recipe("ram-mnist")
    settings = with_settings(recipe.settings, ["n_glimpses=3", "d_hidden=8", "steps=1"])

    class BlindRam(RamRecipe):
        def trace(self, run, text, *, data=None):
            assert isinstance(run.model, Ram) and text == "7"
            image = torch.linspace(0, 1, 784).view(28, 28)
            centres = run.model.look(image[None], is_drawn=False).centres[0, 0]
            return [gaze(run.model.retina, image, centres, steps=("a", "b", "c"), title="seven")]

    register_recipe(BlindRam(**{**vars(recipe), "name": "ram-blind"}))
    job = Job(
        model=recipe.restore(settings, {}),
        batches=lambda _: [torch.zeros(2, 28, 28)],
        loss=lambda model, images: LossOut(model(images).square().mean(), n=2),
        validate=lambda _: {"error": 90.0},
        score="error",
        is_better="less",
        config=replace(settings.training, warmup=0),
        has_idle_weights=True,
    )
    from dataclasses import asdict

    about = {"recipe": "ram-blind", "settings": asdict(settings), "command": "saccade train ..."}
    train(job, tmp_path / "run", about=about)
    yield tmp_path / "run"
    from saccade.zoo.recipes import recipe as registry

    registry._REGISTERED.pop("ram-blind")


def test_a_gaze_is_shown_kept_and_drawn(saccade, trained, tmp_path):
    files = {name: tmp_path / name for name in ("kept", "a.png", "a.gif")}
    options = ["--out", files["kept"], "--png", files["a.png"], "--gif", files["a.gif"]]
    code, out, err = saccade("trace", trained, "7", *options)
    assert code == 0, err
    assert out.splitlines()[0] == "gaze: seven"
    assert out.splitlines()[1].split() == ["a", "at", "x", "+0.00", "y", "+0.00"]
    assert all(f"wrote {path}" in err for path in files.values())
    with Image.open(files["a.gif"]) as moving:
        assert moving.n_frames == 3
    code, out, _ = saccade(
        "plot", files["kept"], "--png", tmp_path / "b.png", "--gif", tmp_path / "b.gif"
    )
    assert code == 0 and out.splitlines() == [str(tmp_path / "b.png"), str(tmp_path / "b.gif")]
    assert (tmp_path / "b.png").read_bytes() == files["a.png"].read_bytes()
    code, _, err = saccade("plot", files["kept"], "--html", tmp_path / "b.html")
    assert code == 0, err
    assert '"kind":"gaze","title":"seven"' in (tmp_path / "b.html").read_text(encoding="utf-8")


def test_a_matrix_and_the_curves_of_a_run_do_not_move(saccade, trained, tmp_path, told_in_a_line):
    from saccade.trace.trace import Trace, save_trace

    matrix = Trace(kind="attention", steps=("a",), memory=("b",), weights=torch.ones(1, 1))
    save_trace(tmp_path / "matrix", matrix)
    code, _, err = saccade("plot", tmp_path / "matrix", "--gif", tmp_path / "x.gif")
    assert code == 2 and "is a matrix and has no animation" in told_in_a_line(err)
    code, _, err = saccade("plot", trained, "--gif", tmp_path / "x.gif")
    assert code == 2 and "an image, not a page" in told_in_a_line(err)


def test_weights_over_an_image_are_a_picture_a_page_and_move(saccade, tmp_path):
    from saccade.trace.trace import ImageTrace, save_trace

    overlay = ImageTrace(
        kind="overlay",
        image=torch.rand(6, 8, 3),
        steps=("a", "dog"),
        outlines=torch.zeros(2, 0, 4, 2),
        heat=torch.eye(2).view(2, 1, 2),
    )
    save_trace(tmp_path / "kept", overlay)
    files = [tmp_path / name for name in ("a.png", "a.gif", "a.html")]
    options = [each for path in files for each in (f"--{path.suffix[1:]}", path)]
    code, out, err = saccade("plot", tmp_path / "kept", *options)
    assert code == 0, err
    assert out.splitlines() == [str(path) for path in files]
    assert all(path.stat().st_size > 100 for path in files)
    assert "dog" in files[2].read_text(encoding="utf-8")
