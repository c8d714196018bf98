"""What cannot be fitted is refused before any text is read, all problems in one message."""

from __future__ import annotations

import difflib
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, get_args, get_origin, get_type_hints

from saccade.errors import UsageError
from saccade.lenses.fit_config import FitConfig
from saccade.lenses.lens import lens_kind
from saccade.lenses.objectives import find_objective

if TYPE_CHECKING:
    from saccade.heads import LanguageModel


def checked(model: LanguageModel, config: FitConfig, *, is_own_text: bool = False) -> FitConfig:
    """The settings with what follows from them filled in.

    Args:
        is_own_text: the model writes the text, in windows of its own.

    Raises:
        UsageError: the settings contradict each other or the model.
    """
    if config.method == "published":
        config = replace(config, kind="dense")
    lens_kind(config.kind)
    find_objective(config.objective)
    for layer in config.layers:
        model.layer(layer)
    problems = [
        *_unknown_names(config),
        *_bad_numbers(config, least_tokens=1 if is_own_text else 2 * config.window),
        *_contradictions(config),
    ]
    if problems:
        raise UsageError(
            "; ".join(problems), hint="see `saccade lens fit --help` for what goes together"
        )
    return config


def _unknown_names(config: FitConfig) -> list[str]:
    found = []
    for name, kind in get_type_hints(FitConfig).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal and value not in get_args(kind):
            near = difflib.get_close_matches(str(value), get_args(kind), n=1)
            guess = f" (did you mean {near[0]!r}?)" if near else ""
            found.append(f"{name}: {value!r} is none of {', '.join(get_args(kind))}{guess}")
    return found


def _bad_numbers(config: FitConfig, *, least_tokens: int) -> list[str]:
    return [
        f"{name}: {value} is less than {least}"
        for name, value, least in (
            ("tokens", config.tokens, least_tokens),
            ("window", config.window, 2),
            ("rows", config.rows, 1),
            ("steps", config.steps, 0),
            ("learning_rate", config.learning_rate, 0),
        )
        if not value >= least  # which a learning rate that is no number is not either
    ]


def _contradictions(config: FitConfig) -> list[str]:
    found = []
    if config.method in ("closed-form", "polish") and config.objective != "kl":
        found.append(f"objective: {config.method} minimises kl, not {config.objective}; use train")
    if config.method == "closed-form" and config.kind not in ("head", "jacobian", "tuned"):
        found.append(f"method: a {config.kind} lens has no closed form; use train")
    if config.method == "train" and config.kind == "jacobian":
        found.append("method: a jacobian lens is the model's own slope, not trained; leave it out")
    if config.method == "polish" and config.kind not in ("head", "tuned"):
        found.append(f"method: a {config.kind} lens cannot be polished; use train")
    if config.layers and config.kind == "head" and config.method != "train":
        found.append("layers: the closed form gives all layers at once; leave them out")
    return found
