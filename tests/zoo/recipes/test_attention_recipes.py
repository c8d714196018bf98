"""The recipes of Bahdanau and of Luong, from training to metrics, on a small scale."""

import json

import pytest

from saccade.cli.main import main
from saccade.zoo.recipes.recipe import find_recipe

GERMAN = ["Ein Hund läuft .", "Eine Katze schläft .", "Ein kleiner Hund schläft im Gras ."]
ENGLISH = ["A dog runs .", "A cat sleeps in sun", "A small dog rests on the wet grass , well ."]
TINY = ["steps=3", "minutes=0", "warmup=1", "validate_steps=2", "d_hidden=8", "d_embed=5"]
NAMES = ("bahdanau-multi30k", "luong-multi30k")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "multi30k").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "\n".join(lines * 7) + "\n"
            (folder / "multi30k" / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


def train(name, data, out, *changes):
    settings = find_recipe(name).settings
    known = {*vars(settings), *vars(settings.training)}
    tiny = [change for change in (*TINY, "n_pieces=60") if change.split("=")[0] in known]
    words = [word for change in (*tiny, *changes) for word in ("--set", change)]
    assert main(["train", name, *words, "--data", str(data), "--out", str(out), "--json"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_fits_its_time_and_knows_its_steps(name):
    recipe = find_recipe(name)
    training = recipe.settings.training
    assert 0 < training.minutes <= recipe.minutes <= 45
    assert training.steps > 0  # its schedule falls to zero at the last


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("bahdanau-multi30k", ["output=maxout", "precision=bfloat16"]),
        ("luong-multi30k", ["attention=concat", "view=local-p"]),
        ("luong-multi30k", ["is_fed=false", "attention=location", "view=local-m"]),
    ],
)
def test_a_translator_is_trained_evaluated_used_and_watched(
    name, changes, data, tmp_path, capsys, judge_translations
):
    train(name, data, tmp_path / "run", *changes)
    metrics = json.loads(capsys.readouterr().out)
    judged = judge_translations(tmp_path / "run", GERMAN * 7, ENGLISH * 7)
    assert metrics["value"] == pytest.approx(judged["bleu"], abs=0.01)
    assert metrics["test"]["chrf"] == pytest.approx(judged["chrf"], abs=0.01)
    assert main(["translate", str(tmp_path / "run"), GERMAN[0]]) == 0
    capsys.readouterr()
    assert main(["trace", str(tmp_path / "run"), GERMAN[0], "--json"]) == 0
    (trace,) = json.loads(capsys.readouterr().out)
    assert trace["memory"][-1] == "</s>" and len(trace["weights"]) == len(trace["steps"])
