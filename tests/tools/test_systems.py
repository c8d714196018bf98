"""`tools/systems.py`: nothing is missing, and all that is named is there."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
# How many systems there are, by the letter of their number.
COUNTS = {"Z": 11, "R": 23, "T": 18, "L": 11, "S": 18, "A": 17, "V": 15, "M": 11, "X": 6, "E": 4}
NUMBERS = [f"{letter}{n}" for letter, most in COUNTS.items() for n in range(1, most + 1)]


@pytest.fixture(scope="module")
def systems():
    from systems import all_systems

    return all_systems()


def test_every_number_is_there_once_and_in_order(systems):
    assert [each.number for each in systems] == NUMBERS
    assert all(each.name and each.files for each in systems)
    assert len({each.name for each in systems}) == len(systems)


def test_every_file_exists(systems):
    named = {file for system in systems for file in system.files}
    assert not {file for file in named if not (ROOT / "saccade" / file).is_file()}


def test_every_recipe_exists(systems):
    from saccade.zoo.recipes.recipe import all_recipes

    known = all_recipes()
    assert not {f"{s.number} {name}" for s in systems for name in s.recipes if name not in known}


def test_every_recipe_belongs_to_a_system(systems):
    from saccade.zoo.recipes.recipe import _REGISTERED, all_recipes

    named = {name for system in systems for name in system.recipes}
    assert not {*all_recipes()} - {*_REGISTERED} - named


def test_every_model_belongs_to_a_system(systems):
    named = {file for system in systems for file in system.files}
    recipes = {name for system in systems for name in system.recipes}
    from saccade.zoo.recipes.recipe import all_recipes

    known = all_recipes()
    used = {f"zoo/models/{known[name].system}.py" for name in recipes if name in known}
    assert not {each for each in used if (ROOT / "saccade" / each).is_file()} - named


def test_every_command_exists(systems):
    from saccade.cli import main

    inside = {f"{name} {each}" for name, group in main.GROUPS.items() for each in group.commands}
    known = {*main.COMMANDS} | inside
    assert not {name for system in systems for name in system.commands} - known


def test_our_numbers_are_those_of_the_results(tool, systems, tmp_path):
    page = tmp_path / "systems.md"
    code, out, err = tool("systems", "--results", ROOT / "docs", "--out", page, "--json")
    assert code == 0 and f"wrote {page}" in err
    shown = json.loads(out)
    ours = {row["recipe"]: row for row in json.loads((ROOT / "docs/results.json").read_text())}
    assert [each["number"] for each in shown] == NUMBERS
    told = {each["recipe"]: each for row in shown for each in row["recipes"]}
    for name, row in ours.items():
        if name in told:  # an ensemble is no recipe
            assert told[name]["ours"] == row["value"]
    assert told["bahdanau-multi30k"]["published"] == 28.1
    assert [len(each["recipes"]) for each in shown] == [len(each.recipes) for each in systems]


def test_the_page_of_the_docs_is_what_the_tool_writes(tool, tmp_path):
    page = tmp_path / "systems.md"
    assert tool("systems", "--results", ROOT / "docs", "--out", page)[:2] == (0, "")
    wrote, kept = (path.read_text(encoding="utf-8") for path in (page, ROOT / "docs/systems.md"))
    assert wrote == kept, "`python tools/systems.py` writes it anew"


def test_every_system_of_the_page_links_its_files_and_names_its_commands(systems):
    page = (ROOT / "docs/systems.md").read_text(encoding="utf-8")
    links = {*re.findall(r"\]\((\.\./saccade/[^)]*)\)", page)}
    assert links == {f"../saccade/{file}" for each in systems for file in each.files}
    (row,) = [line for line in page.splitlines() if line.startswith("| S9 |")]
    assert "| `saccade train bahdanau-multi30k` | bleu | 28.1 | 40.06 |" in row
    assert re.findall(r"^\| (X\d+) \|", page, re.MULTILINE) == [f"X{n}" for n in range(1, 7)]
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert {line.replace(r"\|", "").count("|") for line in tables} == {9}


def test_without_results_our_numbers_are_left_out(tool, tmp_path):
    code, _, err = tool("systems", "--results", tmp_path, "--out", tmp_path / "a.md")
    page = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert code == 0 and "our numbers are left out" in err
    assert "| `saccade train bahdanau-multi30k` | bleu | 28.1 | not run yet |" in page
    assert "40.06" not in page
