"""The recipe of hard attention, from training to metrics and traces, on a small scale."""

import json

import pytest

from saccade.cli.main import main
from saccade.zoo.recipes.recipe import find_recipe

GERMAN = ["Ein Hund läuft .", "Eine Katze schläft .", "Ein kleiner Hund schläft im Gras ."]
ENGLISH = ["A dog runs .", "A cat sleeps in sun", "A small dog rests on the wet grass , well ."]
TINY = ["steps=3", "minutes=0", "warmup=1", "validate_steps=2", "d_hidden=8", "d_embed=5"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "multi30k").mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "\n".join(lines * 7) + "\n"
            (folder / "multi30k" / f"{part}.{language}").write_text(text, encoding="utf-8")
    return folder


def test_the_recipe_fits_its_time_and_knows_its_steps():
    recipe = find_recipe("hard-attention")
    training = recipe.settings.training
    assert 0 < training.minutes <= recipe.minutes <= 45
    assert training.steps > 0  # its schedule falls to zero at the last


def test_stretched_words_are_written_down_and_watched(data, tmp_path, capsys):
    out, words = str(tmp_path / "run"), [word for each in TINY for word in ("--set", each)]
    train = ["train", "hard-attention", *words, "--data", str(data), "--out", out, "--json"]
    assert main(train) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["metric"] == "words" and {"letters", "guessed", "delay"} < set(metrics["test"])
    assert main(["translate", out, "dd_oogg"]) == 0
    capsys.readouterr()
    assert main(["trace", out, "dd_oogg", "--json"]) == 0
    (trace,) = json.loads(capsys.readouterr().out)
    assert trace["memory"] == [*"dd_oogg", "</s>"]
    assert all(sorted(row)[-1] == 1.0 and sum(row) == 1.0 for row in trace["weights"])
