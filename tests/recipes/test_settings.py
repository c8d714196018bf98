"""Settings from words, and back from a run."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

import pytest

from saccade.errors import RecipeError, UsageError
from saccade.recipes.settings import list_settings, read_settings, with_settings
from saccade.training.config import TrainConfig

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
        "norm: expected one of pre, post; got 'pots' (did you mean post?); "
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
