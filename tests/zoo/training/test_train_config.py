"""What can be set about a training, and what is refused."""

import pytest

from saccade.errors import UsageError
from saccade.zoo.training.settings import TrainConfig


def test_all_that_is_wrong_is_told_at_once():
    with pytest.raises(UsageError) as refused:
        TrainConfig(steps=-1, schedule="warmup-inverse-sqrt", log_steps=0)
    assert str(refused.value) == (
        "3 problems in the training's settings: steps: expected 0 or more, got -1; "
        "log_steps: expected 1 or more, got 0; "
        "warmup: the schedule warmup-inverse-sqrt needs 1 or more, got 0"
    )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "optimiser",
            "adma",
            "optimiser: expected one of adam, adamw, sgd, rmsprop, muon; got 'adma'",
        ),
        ("schedule", "up", "schedule: expected one of constant, warmup-inverse-sqrt, linear"),
        ("precision", "half", "precision: expected one of float32, bfloat16; got 'half'"),
        ("halve_after", 0, "halve_after: expected 1 or more, got 0"),
        ("learning_rate", float("nan"), "learning_rate: expected a finite number, got nan"),
        ("learning_rate", 0.0, "learning_rate: expected more than 0, got 0.0"),
        ("minutes", float("inf"), "minutes: expected a finite number, got inf"),
        ("betas", (0.9, 2.0), "betas: expected less than 1, got 2.0"),
        ("seed", 10**23, "seed: expected at most 4294967295, got 100000000000000000000000"),
        ("epochs", True, "epochs: expected a whole number, got True"),
    ],
)
def test_a_bad_value_is_named(field, value, words):
    config = TrainConfig()
    object.__setattr__(config, field, value)  # past the checker of types, which only tests have
    with pytest.raises(UsageError, match=r"1 problem in the training's settings") as refused:
        config.__post_init__()
    assert words in str(refused.value)


def test_a_run_may_be_made_longer_unless_its_rate_falls_towards_the_end():
    assert {"minutes", "epochs", "steps"} <= TrainConfig(epochs=3).may_change()
    assert "epochs" not in TrainConfig(epochs=3, schedule="cosine").may_change()
    assert "minutes" in TrainConfig(epochs=3, schedule="cosine").may_change()
    assert "learning_rate" not in TrainConfig().may_change()
