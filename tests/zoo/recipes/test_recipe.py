"""Recipes are found by their names, those of a plugin too."""

import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

import saccade.zoo.recipes
from saccade.errors import RecipeError, UsageError
from saccade.zoo.recipes.recipe import (
    INDEX,
    Entry,
    Recipe,
    SampleOptions,
    all_recipes,
    find_recipe,
    list_recipes,
    written_index,
)


def test_a_recipe_is_found_by_its_name(tiny):
    assert find_recipe("tiny-mirror") is tiny
    assert list(all_recipes()) == sorted(all_recipes())


def test_an_unknown_one_is_refused_with_the_nearest(tiny):
    with pytest.raises(RecipeError, match="there is no recipe 'tiny-miror'") as refused:
        find_recipe("tiny-miror")
    assert refused.value.hint.startswith("did you mean 'tiny-mirror'?")
    with pytest.raises(RecipeError, match="there is no recipe 'qqq'") as refused:
        find_recipe("qqq")
    assert refused.value.hint.startswith("`saccade recipes` lists them")


def test_the_index_repeats_what_the_classes_say():
    text = Path(saccade.zoo.recipes.__path__[0], INDEX).read_text(encoding="utf-8")
    assert text == written_index(), "run `make index`"


def test_the_index_finds_every_recipe_in_its_module(tiny):
    entries = list_recipes()
    assert entries.keys() == all_recipes().keys() and len(entries) > 80
    for name, recipe in all_recipes().items():
        assert recipe.name == name and entries[name] == Entry.of(recipe, entries[name].module)


def test_a_list_of_recipes_does_not_import_torch():
    code = (
        "import sys; from saccade.cli.main import main; main(['recipes']); "
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ram-mnist" in done.stdout and done.stderr.strip() == "False"


def test_what_a_system_does_not_do_is_refused(tiny):
    @dataclass(frozen=True, kw_only=True)
    class Bare(Recipe):
        def build(self, settings, data):
            raise AssertionError

        restore = evaluate = build

    facts = {field.name: getattr(tiny, field.name) for field in fields(Recipe)}
    bare = Bare(**facts)
    assert not bare.can_trace and not bare.can_translate and bare.unknown_words(None, "a") == ()
    for ask in (lambda: bare.trace(None, "a"), lambda: bare.sample(None, SampleOptions())):
        with pytest.raises(UsageError, match=r"tiny-mirror (has no attention|does not generate)"):
            ask()
    with pytest.raises(TypeError, match="abstract"):
        Recipe(**facts)


def test_settings_without_a_training_are_a_bug(tiny):
    @dataclass(frozen=True)
    class Bare:
        depth: int = 1

    with pytest.raises(AssertionError, match="a dataclass with a field `training: TrainConfig`"):
        replace(tiny, settings=Bare())


@pytest.mark.parametrize(
    ("is_better", "value", "reached"),
    [("more", 0.9, True), ("more", 0.89, False), ("less", 0.9, True), ("less", 0.91, False)],
)
def test_what_was_wanted_is_reached_or_not(tiny, is_better, value, reached):
    assert replace(tiny, is_better=is_better).reaches(value, 0.9) is reached
