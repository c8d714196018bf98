"""Settings from words, and back from a run."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Literal, get_args, get_origin

import pytest

from saccade.errors import RecipeError, UsageError
from saccade.zoo.recipes.recipe import all_recipes, find_recipe
from saccade.zoo.training.settings import (
    Share,
    TrainConfig,
    list_settings,
    problem_of,
    read_settings,
    with_settings,
)

TRAINING = TrainConfig(epochs=5)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    width: int = 3
    seed: int = 1


@dataclass(frozen=True, kw_only=True)
class Settings:
    depth: int = 2
    rate: float = 0.5
    name: str = "x"
    is_deep: bool = False
    norm: Literal["pre", "post"] = "pre"
    most: int | None = None
    layers: tuple[int, ...] = (1, 2)
    sizes: Sizes = Sizes()
    training: TrainConfig = TRAINING

    def __post_init__(self):
        if self.depth > 100:
            raise ValueError(f"depth: expected at most 100, got {self.depth}")


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("depth=7", "depth", 7),
        ("rate=1e-3", "rate", 1e-3),
        ("rate=2", "rate", 2.0),
        ("name=a=b c", "name", "a=b c"),
        ("is_deep=true", "is_deep", True),
        ("is_deep=No", "is_deep", False),
        ("norm=post", "norm", "post"),
        ("most=4", "most", 4),
        ("layers=3,5,7", "layers", (3, 5, 7)),
        ("layers=", "layers", ()),
        ("sizes.width=11", "sizes.width", 11),
        ("width=11", "sizes.width", 11),
        ("training.betas=(0.8, 0.9)", "training.betas", (0.8, 0.9)),
        ("schedule=cosine", "training.schedule", "cosine"),
    ],
)
def test_a_word_changes_one_setting_and_no_other(word, name, value):
    before = {setting.key: setting.value for setting in list_settings(Settings())}
    after = {s.key: s.value for s in list_settings(with_settings(Settings(), [word]))}
    assert after == {**before, name: value}
    assert type(after[name]) is type(value)


def test_none_is_a_value_where_it_may_be():
    assert with_settings(replace(Settings(), most=3), ["most=none"]).most is None


def test_all_that_is_wrong_is_told_at_once_with_the_nearest_name():
    words = ["detph=3", "norm=pots", "rate=fast", "most=x", "layers=1,b", "seed=3", "is_deep=maybe"]
    with pytest.raises(UsageError) as refused:
        with_settings(Settings(), [*words, "depth", "betas=1", "zzz=1"])
    assert str(refused.value) == (
        "10 problems in --set: detph: unknown key (did you mean 'depth'?); "
        "norm: expected one of pre, post; got 'pots' (did you mean 'post'?); "
        "rate: expected a number, got 'fast'; most: expected a whole number, got 'x'; "
        "layers: expected a whole number, got 'b'; "
        "seed: could be sizes.seed or training.seed; "
        "is_deep: expected true or false, got 'maybe'; depth: expected key=value; "
        "betas: expected 2 values with commas, got '1'; zzz: unknown key"
    )
    assert refused.value.hint == "`saccade recipes NAME` shows what can be set"


def test_what_the_settings_themselves_refuse_is_told_in_the_same_way():
    with pytest.raises(
        UsageError, match="1 problem in --set: depth: expected at most 100, got 101"
    ):
        with_settings(Settings(), ["depth=101"])
    with pytest.raises(UsageError, match="steps: expected 0 or more, got -1"):
        with_settings(Settings(), ["steps=-1"])


def test_settings_come_back_from_json():
    settings = with_settings(Settings(), ["layers=3,5", "betas=0.5,0.6", "most=4", "width=7"])
    stored = json.loads(json.dumps(asdict(settings)))
    assert read_settings(Settings(), stored) == settings


def test_settings_of_another_version_are_refused():
    stored = asdict(Settings())
    stored["sizes"]["height"] = stored["sizes"].pop("width")
    with pytest.raises(RecipeError) as refused:
        read_settings(Settings(), stored)
    assert "sizes.height is not known any more; sizes.width is new" in str(refused.value)


@pytest.mark.parametrize(("recipe", "old"), [("ram-mnist", "wander"), ("row-mnist", "jitter")])
def test_settings_of_before_are_read_by_their_new_names(recipe, old):
    settings = replace(find_recipe(recipe).settings, max_shift=3)
    stored = json.loads(json.dumps(asdict(settings)))
    stored[old] = stored.pop("max_shift")
    assert read_settings(find_recipe(recipe).settings, stored) == settings


def test_values_out_of_range_are_refused_all_in_one_message():
    words = ["d_slot=0", "n_test=0", "n_slots=-3", "d_hidden=1000000000000", "lengths=5,2"]
    words += ["tested=", "learning_rate=nan", "minutes=inf", "betas=0.9,2", "seed=" + "9" * 23]
    with pytest.raises(UsageError) as refused:
        with_settings(find_recipe("ntm-copy").settings, words)
    assert str(refused.value) == (
        "10 problems in --set: d_slot: expected 1 or more, got 0; "
        "n_test: expected 1 or more, got 0; n_slots: expected 1 or more, got -3; "
        "d_hidden: expected at most 65536, got 1000000000000; "
        "lengths: expected the smaller value first, got (5, 2); "
        "tested: expected at least 1 value, got none; "
        "learning_rate: expected a finite number, got nan; "
        "minutes: expected a finite number, got inf; betas: expected less than 1, got 2.0; "
        f"seed: expected at most 4294967295, got {'9' * 23}"
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_value_of_a_tuple_is_checked_whether_their_number_is_fixed_or_not(n):
    fixed = tuple[(Share,) * n]
    for kind in (fixed, tuple[Share, ...]):
        assert problem_of((0.5,) * n, kind) == ""
        for at in range(n):
            values = tuple(2.0 if i == at else 0.5 for i in range(n))
            assert problem_of(values, kind) == "expected at most 1, got 2.0"
    longer = (0.5,) * (n + 1)
    assert problem_of(longer, fixed) == f"expected {n} values, got {longer}"
    assert problem_of(longer, tuple[Share, ...]) == ""


def numbers_of(kind):
    """The kinds of number in the type of a setting."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    inside = {number for each in get_args(kind) for number in numbers_of(each)}
    return inside if get_origin(kind) is tuple else {kind} & {int, float}


@pytest.mark.parametrize("recipe", all_recipes().values(), ids=lambda recipe: recipe.name)
def test_no_number_of_a_recipe_may_be_nan_or_without_bound(recipe):
    """Whole numbers have a least and a most, so that nothing is built for hours or not at all."""
    for setting in list_settings(recipe.settings):
        numbers = numbers_of(setting.kind)
        wrong = ["nan", "inf", "-inf"] if float in numbers else []
        wrong += ["-1000000000000000000000000", "1" + "0" * 24] if int in numbers else []
        for text in wrong:
            several = ",".join([text] * 2) if get_origin(strip(setting.kind)) is tuple else text
            with pytest.raises(UsageError, match=f"1 problem in --set: {setting.key}: expected "):
                with_settings(recipe.settings, [f"{setting.key}={several}"])


def strip(kind):
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def test_a_recipe_with_settings_out_of_range_is_refused_when_it_is_made():
    recipe = find_recipe("ntm-copy")
    with pytest.raises(
        UsageError, match="1 problem in MachineSettings: d_slot: expected 1 or more"
    ):
        replace(recipe, settings=replace(recipe.settings, d_slot=0))


@pytest.mark.parametrize("value", [None, "20", -1, 0, 2.5, True, [], {}, 10**30])
def test_a_setting_of_a_run_that_was_changed_is_refused(value):
    recipe = find_recipe("ntm-copy")
    stored = json.loads(json.dumps(asdict(recipe.settings)))
    stored["d_slot"] = value
    with pytest.raises(RecipeError, match="d_slot"):
        read_settings(recipe.settings, stored)
