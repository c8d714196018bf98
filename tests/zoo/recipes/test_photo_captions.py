"""Captions of photographs: a small run on made ones, the baselines, and the forms of data."""

import io
import json

import pytest
import torch
from PIL import Image

from saccade.errors import UsageError
from saccade.zoo.recipes.photo_captions import most_frequent, nearest, read_part
from saccade.zoo.recipes.recipe import find_recipe
from saccade.zoo.recipes.run import evaluate_run, load_run, train_recipe
from saccade.zoo.tasks.photographs import Photographs
from saccade.zoo.training.settings import with_settings

COLOURS = {"red": (250, 10, 10), "green": (10, 250, 10), "blue": (10, 10, 250)}
SMALL = ["size=24", "margin=4", "channels=3,4,5,6,7", "d_embed=8", "d_hidden=11", "batch=8"]
SMALL += ["n_others=4", "beam=2", "min_count=1", "dropout=0.0", "validate_steps=0", "warmup=1"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Forty plain images that are said to be of their colour."""
    place = tmp_path_factory.mktemp("data") / "flickr8k-1000"
    (place / "images").mkdir(parents=True)
    lines = ["image,caption"]
    for number in range(40):
        name, colour = f"{number:02}.png", list(COLOURS)[number % 3]
        held = io.BytesIO()
        Image.new("RGB", (30, 20), COLOURS[colour]).save(held, format="PNG")
        (place / "images" / name).write_bytes(held.getvalue())
        lines += [f"{name},a {colour} thing is here", f"{name},something {colour} is seen"]
    (place / "captions.txt").write_text("\n".join(lines))
    elsewhere = [
        f"x{number}.png,a {colour} thing is here" for number in range(5) for colour in COLOURS
    ]
    (place / "all-captions.txt").write_text("\n".join([*lines, *elsewhere]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SACCADE_DATA", str(place.parent))
        yield place.parent


@pytest.mark.parametrize("name", ["caption-flickr8k-1000", "caption-flickr8k-1000-tell"])
def test_colours_are_learnt_and_beat_the_sentence_that_is_said_most_often(folder, tmp_path, name):
    recipe = find_recipe(name)
    settings = with_settings(recipe.settings, [*SMALL, "epochs=25", "learning_rate=0.01"])
    train_recipe(recipe, tmp_path / "run", settings=settings, data=folder)
    run = load_run(tmp_path / "run")
    metrics = evaluate_run(run, folder)["test"]
    assert metrics["cider"] > metrics["cider_frequent"] and metrics["bleu4"] > 50
    assert set(metrics) == {"cider", *recipe.other_metrics}
    (trace,) = recipe.trace(run, "1")
    assert trace.image.shape == (24, 24, 3) and trace.heat.shape[1:] == (2, 2)
    (from_file,) = run.trace(folder / "flickr8k-1000" / "images" / "19.png")
    assert from_file.steps == trace.steps
    with pytest.raises(UsageError, match="the number of a test photograph, 0 to 3, got 4"):
        recipe.trace(run, "4")
    with pytest.raises(UsageError, match=r"or an image file, got 'none\.png'"):
        recipe.trace(run, "none.png")


def test_the_baselines_are_what_they_say():
    sentences = tuple((("b", number), ("a",)) for number in "xyz")
    images = torch.zeros(3, 3, 24, 24, dtype=torch.uint8)
    images[:, 0] = torch.tensor([0, 100, 200], dtype=torch.uint8)[:, None, None]
    known = Photographs(("0", "1", "2"), images, sentences)
    assert most_frequent(known) == "a"
    recipe = find_recipe("caption-flickr8k-1000")
    settings = with_settings(recipe.settings, SMALL)
    torch.manual_seed(0)
    model = recipe.restore(settings, {"words": ["<pad>"] * 9}).eval()
    asked = Photographs(("5",) * 2, images[[2, 0]], sentences[:2])
    with torch.no_grad():
        found = nearest(model.encoder, known, asked, size=24)
    assert found == ["b z", "b x"]


def test_a_file_of_karpathys_form_is_used_in_place_of_flickr8k(folder):
    place = folder / "flickr8k-1000" / "images"
    held = [
        {"filename": f"{n:02}.png", "split": "val", "sentences": [{"tokens": ["x", "y"]}]}
        for n in range(3)
    ]
    (place / "k.json").write_text(json.dumps({"images": held}))
    settings = with_settings(
        find_recipe("caption-flickr8k-1000").settings, [*SMALL, f"captions={place / 'k.json'}"]
    )
    part = read_part("valid", settings, None)
    assert part.references() == [["x y"]] * 3 and part.images.shape == (3, 3, 28, 28)
