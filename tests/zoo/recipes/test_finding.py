"""Recipes are found by their names, those of a plugin too."""

import inspect
import pkgutil
from dataclasses import dataclass, replace
from importlib import import_module

import pytest

import saccade.zoo.recipes
from saccade.errors import RecipeError
from saccade.zoo.recipes.finding import FRAME, all_recipes, find_recipe
from saccade.zoo.recipes.recipe import Later, Recipe


def test_a_recipe_is_found_by_its_name(tiny):
    assert find_recipe("tiny-mirror") is tiny
    assert list(all_recipes()) == sorted(all_recipes())


def test_an_unknown_one_is_refused_with_the_nearest(tiny):
    with pytest.raises(RecipeError, match="there is no recipe 'tiny-miror'") as refused:
        find_recipe("tiny-miror")
    assert refused.value.hint.startswith("did you mean tiny-mirror?")
    with pytest.raises(RecipeError, match="there is no recipe 'qqq'") as refused:
        find_recipe("qqq")
    assert refused.value.hint.startswith("`saccade recipes` lists them")


def test_every_module_here_is_a_recipe_or_holds_recipes_up():
    names = {module.name for module in pkgutil.iter_modules(saccade.zoo.recipes.__path__)}
    assert names >= FRAME
    for name in names - FRAME:
        module = import_module(f"saccade.zoo.recipes.{name}")
        assert module.RECIPES and all(isinstance(each, Recipe) for each in module.RECIPES)


def test_functions_that_are_imported_later_exist_and_take_what_they_are_given():
    given = {"build": 2, "restore": 2, "evaluate": 2, "trace": 2, "translate": 3, "sample": 2}
    named = set()
    for recipe in all_recipes().values():
        for field, n in given.items():
            each = getattr(recipe, field)
            if isinstance(each, Later):
                takes = n if each.takes is None else each.takes
                inspect.signature(each.function).bind(*[None] * takes)
                named.add(each.name)
    assert len(named) > 50


def test_a_function_that_is_imported_later_gets_as_many_arguments_as_it_takes():
    assert Later("settings.parse")("3", int) == 3
    assert Later("options.SampleOptions", takes=0)("no", "arguments").length > 0
    with pytest.raises(AttributeError, match="no_such_function"):
        Later("settings.no_such_function")("3")


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
