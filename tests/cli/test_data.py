"""Which data sets are here, and what is said of those that are not."""

import json

import pytest
from small_data import write_pen_words


@pytest.fixture
def only_here(tmp_path, monkeypatch):
    """A folder with one data set, and no other place to look."""
    monkeypatch.delenv("SACCADE_DATA", raising=False)
    folder = tmp_path / "data" / "tinyshakespeare"
    folder.mkdir(parents=True)
    (folder / "input.txt").write_text("To be")
    return tmp_path / "data"


def test_the_list_says_what_is_where(saccade, only_here):
    code, out, _ = saccade("data", "list", "--data", only_here, "--json")
    found = {each["name"]: each for each in json.loads(out)}
    assert code == 0 and found["tinyshakespeare"]["where"].startswith(str(only_here))
    assert found["multi30k"]["where"] is None and found["multi30k"]["licence"]
    code, out, _ = saccade("data", "list", "--data", only_here)
    assert code == 0 and str(only_here) in out and "not here: " in out


def test_an_unknown_one_is_refused_with_the_nearest(saccade, told_in_a_line):
    code, _, err = saccade("data", "fetch", "multi30")
    assert code == 2 and "no data set named 'multi30'" in told_in_a_line(err)
    assert "hint: did you mean 'multi30k'?" in err


def test_fetching_says_the_licence_and_where_it_went(saccade, tmp_path, monkeypatch):
    from saccade.zoo.tasks import datasets as fetch

    def fetched(name, *, progress):
        progress(f"fetching {name}", 1, 1)
        return tmp_path / name

    monkeypatch.setattr(fetch, "fetch_data", fetched)
    code, out, err = saccade("data", "fetch", "multi30k")
    assert code == 0 and out == f"{tmp_path / 'multi30k'}\n"
    assert "multi30k may be used under: " in err and "fetching multi30k: 1/1" in err
    _, out, _ = saccade("data", "fetch", "multi30k", "--json")
    assert json.loads(out) == {"name": "multi30k", "where": str(tmp_path / "multi30k")}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Handwritten words, and a run of `ctc-words` on them that is hardly trained."""
    from saccade.zoo.recipes.recipe import find_recipe
    from saccade.zoo.recipes.run import train_recipe
    from saccade.zoo.training.settings import with_settings

    folder, recipe = tmp_path_factory.mktemp("words"), find_recipe("ctc-words")
    (folder / "data").mkdir()
    write_pen_words(folder / "data")
    parts = {"anna": 1, "bo": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("saccade.zoo.tasks.pen_words.part_of", lambda person: parts.get(person, 0))
        small = ["d_hidden=8", "n_layers=1", "batch=8", "order=3", "beam=2", "steps=1"]
        settings = with_settings(recipe.settings, [*small, "validate_steps=1"])
        train_recipe(recipe, folder / "runs" / "mine", settings=settings, data=folder / "data")
        yield folder


@pytest.mark.parametrize(
    "command",
    [
        ["trace", "RUNS/mine", "1", "--json"],
        ["translate", "RUNS/mine", "1", "--json"],
        ["eval", "RUNS/mine", "--json"],
        ["view", "RUNS", "--no-model", "--print", "trace"],
    ],
    ids=lambda command: command[0],
)
def test_a_run_is_used_with_the_data_it_is_told_of(
    command, saccade, told_in_a_line, words, tmp_path, monkeypatch
):
    monkeypatch.setenv("SACCADE_DATA", str(tmp_path))  # where nothing is
    given = [each.replace("RUNS", str(words / "runs")) for each in command]
    if command[0] == "view":
        given += ["--ask", json.dumps({"run": "mine", "input": "1"})]
    code, _, err = saccade(*given)
    assert code == 1 and "unipen-words" in told_in_a_line(err)
    code, out, err = saccade(*given, "--data", words / "data")
    assert code == 0, err
    assert json.loads(out)
