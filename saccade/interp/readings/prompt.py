"""Prompts: texts and messages, alone, in lists and in files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from saccade.errors import UsageError, suggest
from saccade.interp.effects.target import Target, find_target

if TYPE_CHECKING:
    from saccade.interp.heads.model import LanguageModel


# A prompt as a user gives it.

PROMPT_HINT = (
    'a prompt is a text, {"prompt": "..."} or {"messages": [{"role": ..., "content": ...}]}'
)


@dataclass(frozen=True, kw_only=True)
class PromptSpec:
    """A prompt, and what is asked about it: a line of a JSONL file has these keys."""

    prompt: str | None = None
    messages: Sequence[Any] | None = None
    """In place of a text: dicts with "role" and "content", for the chat template."""
    token: str | None = None
    """The next token that effects are measured on; by default the likeliest."""
    against: str | None = None
    """A token whose logit is subtracted from it; by default the mean of all tokens."""
    position: int = -1
    """The token after which the heads are read."""

    @classmethod
    def of(cls, value: Any) -> PromptSpec:
        """A text, a list of messages, a dict with the keys of a JSONL line, or a spec itself.

        >>> PromptSpec.of("The cat").prompt
        'The cat'
        >>> PromptSpec.of({"prompt": "The cat", "token": " sat"}).token
        ' sat'
        """
        if isinstance(value, PromptSpec):
            return value
        if isinstance(value, str):
            return cls(prompt=value)
        if is_chat(value):
            return cls(messages=value)
        if isinstance(value, Mapping):
            return cls._of_dict(value)
        raise UsageError(
            f"expected a prompt, got {type(value).__name__}: {value!r}", hint=PROMPT_HINT
        )

    def or_else(self, defaults: PromptSpec) -> PromptSpec:
        """The same prompt; what it does not ask is asked as ``defaults`` do."""
        asks_token = self.token is not None or self.against is not None
        return replace(
            self,
            token=self.token if asks_token else defaults.token,
            against=self.against if asks_token else defaults.against,
            position=defaults.position if self.position == -1 else self.position,
        )

    def as_chat(self) -> PromptSpec:
        """The same prompt as a message of the user."""
        if self.messages is not None:
            return self
        messages = [{"role": "user", "content": self.prompt or ""}]
        return replace(self, prompt=None, messages=messages)

    @classmethod
    def _of_dict(cls, found: Mapping[str, Any]) -> PromptSpec:
        names = [field.name for field in fields(cls)]
        for key in found:
            if key not in names:
                raise UsageError(
                    f"unknown key {key!r} of a prompt: expected {', '.join(names)}",
                    hint=suggest(str(key), names) or PROMPT_HINT,
                )
        if (found.get("prompt") is None) == (found.get("messages") is None):
            raise UsageError('expected either "prompt" or "messages"', hint=PROMPT_HINT)
        kinds = {"prompt": str, "messages": list, "token": str, "against": str, "position": int}
        for key, value in found.items():
            if value is not None and (not isinstance(value, kinds[key]) or value is True):
                raise UsageError(
                    f"{key!r} of a prompt: expected {kinds[key].__name__}, got {value!r}",
                    hint=PROMPT_HINT,
                )
        return cls(**{key: value for key, value in found.items() if value is not None})


def is_chat(value: Any) -> bool:
    """Whether a value is a list of messages."""
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(each, Mapping) and "role" in each for each in value)
    )


class NumberedSpec(NamedTuple):
    """A prompt with its number: the line of its file, or its place in a list, counted from 1."""

    number: int
    spec: PromptSpec


def read_specs(lines: Iterable[str], *, source: str) -> Iterator[NumberedSpec]:
    r"""The prompts of a file: one text a line, or JSONL, whose first line begins with "{".

    Empty lines are skipped.

    Args:
        source: the name of the file, for errors.

    Raises:
        UsageError: there is no prompt, or a line is broken.

    >>> [(number, spec.prompt) for number, spec in read_specs(["The cat\n", "\n", "A"], source="")]
    [(1, 'The cat'), (3, 'A')]
    """
    is_json = None
    for number, line in enumerate(lines, 1):
        if not (text := line.strip("\r\n")).strip():
            continue
        is_json = text.lstrip().startswith("{") if is_json is None else is_json
        yield NumberedSpec(
            number, _of_json(text, number, source) if is_json else PromptSpec(prompt=text)
        )
    if is_json is None:
        raise UsageError(f"there are no prompts in {source}", hint="give one prompt a line")


def _of_json(line: str, number: int, source: str) -> PromptSpec:
    where = f"line {number} of {source}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not JSON: {error}",
            hint='a file whose first line begins with "{" has a JSON object in every line',
        ) from error
    if not isinstance(found, dict):
        raise UsageError(f"{where}: expected a JSON object, got {line[:80]}", hint=PROMPT_HINT)
    try:
        return PromptSpec.of(found)
    except UsageError as error:
        raise UsageError(f"{where}: {error}", hint=error.hint) from error


# A prompt as the model reads it.


class Prompt(NamedTuple):
    """A text as the model reads it."""

    text: str
    ids: Tensor
    """``[1, pos]``, up to the token after which the heads are read."""
    tokens: list[str]
    """All tokens of the text."""
    target: Target | None = None
    """What effects are measured on; None for the likeliest next token."""
    template: tuple[str | None, ...] = ()
    """For each token, the name of the run of template tokens that it belongs to; None for a token
    of a message, empty for a plain text."""
    injected: tuple[str, ...] = ()
    """Special tokens in the content of messages."""


def encode_prompt(model: LanguageModel, text: str, position: int = -1) -> Prompt:
    """Encode a text, up to and including a position. Later tokens do not change a reading.

    Raises:
        UsageError: the text is empty or too long, or the position does not exist.
    """
    return encode_spec(model, PromptSpec(prompt=text, position=position))


def encode_spec(model: LanguageModel, spec: PromptSpec) -> Prompt:
    """Encode a prompt up to its position, and find its target.

    Raises:
        UsageError: it is empty or too long, the position does not exist, or the token is none.
        ModelError: messages for a model without a chat template.
    """
    if spec.token is None and spec.against is not None:
        raise UsageError(
            "a contrast needs a token: `against` was given without `token`",
            hint="give both, such as token=' Mary' and against=' John'",
        )
    if spec.messages is None:
        assert spec.prompt is not None, "a prompt has a text or messages"
        text, template, injected = spec.prompt, (), ()
        ids = model.encode(text)
    else:
        chat = model.encode_chat(spec.messages)
        ids, injected = chat.ids, chat.injected
        roles = [str(message["role"]) for message in spec.messages]
        template = _template_runs(chat.is_template.tolist(), roles)
        text = spec.messages[-1]["content"]
    at = checked_position(spec.position, ids.shape[1])
    tokens = model.tokens(ids[0])
    before = text if not template else "".join(tokens[: at + 1])
    target = None if spec.token is None else find_target(model, before, spec.token, spec.against)
    return Prompt(text, ids[:, : at + 1], tokens, target, template, injected)


def checked_position(position: int, n_tokens: int) -> int:
    """A position counted from the start."""
    if not -n_tokens <= position < n_tokens:
        raise UsageError(
            f"no position {position}: the text has {n_tokens} tokens, 0-{n_tokens - 1}",
            hint="positions count tokens from 0; -1 is the last",
        )
    return position % n_tokens


def _template_runs(is_template: Sequence[bool], roles: Sequence[str]) -> tuple[str | None, ...]:
    """The name of each token's run: the role that it opens, where each message has one run.

    >>> _template_runs([True, True, False, True], ["user"])
    ('<template user>', '<template user>', None, '<template assistant>')
    """
    runs = [(flag, len(list(group))) for flag, group in groupby(is_template)]
    names = [f"<template {role}>" for role in (*roles, "assistant")]
    n_runs = sum(flag for flag, _ in runs)
    opened = iter(names if n_runs == len(names) else ["<template>"] * n_runs)
    found: list[str | None] = []
    for flag, length in runs:
        found += [next(opened) if flag else None] * length
    return tuple(found)
