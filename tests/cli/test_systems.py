"""`saccade systems`: nothing is missing, and all that is named is there."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# How many systems the seeds describe or name, by the letter of their number.
COUNTS = {"Z": 11, "R": 23, "T": 18, "L": 11, "S": 18, "A": 17, "V": 15, "M": 11, "X": 6, "E": 4}
NUMBERS = [f"{letter}{n}" for letter, most in COUNTS.items() for n in range(1, most + 1)]


@pytest.fixture(scope="module")
def systems():
    from saccade.zoo.recipes.systems import all_systems

    return all_systems()


def test_every_number_is_there_once_and_in_order(systems):
    assert [each.number for each in systems] == NUMBERS
    assert all(each.name and each.files for each in systems)
    assert len({each.name for each in systems}) == len(systems)


def test_every_file_exists(systems):
    named = {file for system in systems for file in system.files}
    assert not {file for file in named if not (ROOT / "saccade" / file).is_file()}


def test_every_recipe_exists(systems):
    from saccade.zoo.recipes.registry import all_recipes

    known = all_recipes()
    assert not {f"{s.number} {name}" for s in systems for name in s.recipes if name not in known}


def test_every_recipe_belongs_to_a_system(systems):
    from saccade.zoo.recipes.registry import _REGISTERED, all_recipes

    named = {name for system in systems for name in system.recipes}
    assert not {*all_recipes()} - {*_REGISTERED} - named


def test_every_model_belongs_to_a_system(systems):
    named = {file for system in systems for file in system.files}
    recipes = {name for system in systems for name in system.recipes}
    from saccade.zoo.recipes.registry import all_recipes

    known = all_recipes()
    used = {f"zoo/models/{known[name].system}.py" for name in recipes if name in known}
    assert not {each for each in used if (ROOT / "saccade" / each).is_file()} - named


def test_every_command_exists(systems):
    from saccade.cli import main

    groups = {"lens": main.LENS_COMMANDS, "heads": main.HEADS_COMMANDS}
    groups |= {"guard": main.GUARD_COMMANDS, "data": main.DATA_COMMANDS}
    known = {*main.COMMANDS} | {f"{g} {name}" for g, held in groups.items() for name in held}
    assert not {name for system in systems for name in system.commands} - known


def test_our_numbers_are_those_of_the_results(saccade, systems):
    code, out, _ = saccade("systems", "--results", ROOT / "docs", "--json")
    shown = json.loads(out)
    ours = {row["recipe"]: row for row in json.loads((ROOT / "docs/results.json").read_text())}
    assert code == 0 and [each["number"] for each in shown] == NUMBERS
    told = {each["recipe"]: each for row in shown for each in row["recipes"]}
    for name, row in ours.items():
        if name in told:  # an ensemble is no recipe
            assert told[name]["ours"] == row["value"]
    assert told["bahdanau-multi30k"]["published"] == 28.1
    assert [len(each["recipes"]) for each in shown] == [len(each.recipes) for each in systems]


def test_a_letter_and_a_number_choose(saccade):
    code, out, _ = saccade("systems", "s9", "--results", ROOT / "docs")
    assert code == 0 and out.startswith("Sequence to sequence")
    assert "saccade/zoo/models/bahdanau.py" in out and "published 28.1, ours 40.06" in out
    assert "S10" not in out
    _, out, _ = saccade("systems", "X", "--results", ROOT / "docs")
    assert [line[:2] for line in out.splitlines() if line[:1] == "X"] == [
        f"X{n}" for n in range(1, 7)
    ]


def test_without_results_our_numbers_are_left_out(saccade, tmp_path):
    code, out, err = saccade("systems", "S9", "--results", tmp_path)
    assert code == 0 and "not run yet" in out and "our numbers are left out" in err


def test_an_unknown_number_is_refused(saccade, told_in_a_line):
    code, _, err = saccade("systems", "Q7")
    assert code == 2 and "'Q7'" in told_in_a_line(err)
