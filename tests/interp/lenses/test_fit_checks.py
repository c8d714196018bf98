"""What cannot be fitted is refused before any text is read, with the reason."""

import re
from pathlib import Path

import pytest

from saccade.errors import UsageError
from saccade.interp.lenses.fit import checked, fit_lenses
from saccade.interp.lenses.fit_config import FitConfig


def unchecked(**settings):
    """Settings as they come where nobody checks types."""
    config = FitConfig()
    for name, value in settings.items():
        object.__setattr__(config, name, value)
    return config


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [
        ({"tokens": 511}, "tokens: 511 is less than 512"),
        ({"window": 1, "rows": 0}, "window: 1 is less than 2; rows: 0 is less than 1"),
        ({"steps": -1}, "steps: -1 is less than 0"),
        ({"learning_rate": -0.1}, "learning_rate: -0.1 is less than 0"),
        ({"learning_rate": float("nan")}, "learning_rate: nan is less than 0"),
        (
            {"objective": "input"},
            "objective: closed-form has a fixed objective, not input; use train",
        ),
        (
            {"kind": "jacobian", "objective": "input"},
            "objective: closed-form has a fixed objective, not input; leave it out",
        ),
        (
            {"kind": "tuned", "method": "polish", "objective": "input"},
            "objective: polish has a fixed objective, not input; use train",
        ),
        (
            {"kind": "dense"},
            "method: a dense lens cannot be fitted by closed-form; use train or published",
        ),
        (
            {"kind": "dense", "method": "polish"},
            "method: a dense lens cannot be fitted by polish; use train or published",
        ),
        (
            {"kind": "jacobian", "method": "train"},
            "method: a jacobian lens cannot be fitted by train; use closed-form$",
        ),
        ({"kind": "logit", "method": "train"}, "kind: a logit lens has nothing to fit; .* tuned"),
        (
            {"kind": "logit-head"},
            "nothing to fit; kinds that can be fitted: dense, head, jacobian, tuned",
        ),
        ({"layers": (1,)}, "layers: closed-form fits all layers at once"),
        ({"layers": (1,), "method": "polish"}, "layers: polish fits all layers at once"),
        ({"layers": (5,), "method": "train"}, "no layer 5: .* has heads in layers 0-4"),
        ({"kind": "heads"}, "no lens kind 'heads': known are"),
        ({"objective": "KL"}, "no objective 'KL': known are"),
        (
            {"method": "polished"},
            r"method: 'polished' is not one of .* \(did you mean 'polish'\?\)",
        ),
        ({"over": "heads"}, "over: 'heads' is not one of head, layer"),
        ({"positions": "first"}, "positions: 'first' is not one of all, last"),
    ],
)
def test_what_cannot_be_fitted_is_refused_with_the_reason(stories, settings, tokens):
    with pytest.raises(UsageError, match=tokens) as raised:
        fit_lenses(stories, "never read.txt", unchecked(**settings))
    assert raised.value.hint


def test_all_problems_are_told_at_once(stories):
    config = unchecked(method="publish", rows=0, kind="dense", over="all")
    with pytest.raises(UsageError) as raised:
        checked(stories, config)
    problems = str(raised.value).split("; ")
    assert [each.split(":")[0] for each in problems] == ["method", "over", "rows"]


def test_what_goes_together_passes_unchanged(stories):
    for settings in ({}, {"method": "polish"}, {"kind": "tuned", "layers": (0, 4)}):
        assert checked(stories, FitConfig(**settings)) == FitConfig(**settings)
    for kind in ("head", "dense", "tuned"):
        config = FitConfig(method="train", kind=kind, objective="input", layers=(2,))
        assert checked(stories, config) == config


def test_the_published_recipe_is_of_the_dense_lens(stories):
    assert checked(stories, FitConfig(method="published")).kind == "dense"


def test_text_that_the_model_writes_has_windows_of_its_own(stories):
    config = FitConfig(tokens=300)
    assert checked(stories, config, is_own_text=True) == config
    with pytest.raises(UsageError, match="tokens: 300 is less than 512"):
        checked(stories, config)


def test_a_fit_without_settings_reads_what_the_documentation_says():
    page = (Path(__file__).parents[3] / "docs" / "lenses.md").read_text(encoding="utf-8")
    found = re.search(
        r"Without options, a fit reads ([\d,]+) tokens: (\d+) windows of (\d+) tokens, "
        r"(\d+) windows at a time, with seed (\d+)\.",
        " ".join(page.split()),
    )
    assert found is not None
    tokens, n_windows, window, rows, seed = (int(each.replace(",", "")) for each in found.groups())
    config = FitConfig()
    assert (config.tokens, config.window) == (tokens, window) and n_windows * window == tokens
    assert (config.rows, config.seed) == (rows, seed)
