"""Prompts from a file or a stream: one a line, as plain text or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from saccade.errors import StoreError, UsageError
from saccade.store import parse_json


def prompts_of(lines: Iterable[str]) -> Iterator[str]:
    r"""One prompt a line; a line that begins with ``{`` or ``"`` is JSON, which can hold line ends.

    A JSON line is a string, or an object with a string named "prompt" or "text".

    >>> list(prompts_of(["Correct this: it are", "", '{"prompt": "Two\\nlines"}']))
    ['Correct this: it are', 'Two\nlines']
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        yield _from_json(line, number) if line.lstrip()[0] in '{"' else line.rstrip("\r\n")


def _from_json(line: str, number: int) -> str:
    try:
        found = parse_json(line, where=f"line {number}")
    except StoreError as error:
        raise UsageError(
            f"line {number} begins like JSON and is none: {error}",
            hint='write {"prompt": "..."} in one line, or plain text that begins otherwise',
        ) from error
    if isinstance(found, dict):
        found = found.get("prompt", found.get("text"))
    if not isinstance(found, str) or not found.strip():
        raise UsageError(
            f"line {number} holds no prompt: {line.strip()[:60]}",
            hint='expected a string, or an object with a string named "prompt"',
        )
    return found


def in_portions(prompts: Iterable[str], size: int) -> Iterator[list[str]]:
    """So many prompts at a time, each portion as soon as it is whole.

    >>> [len(portion) for portion in in_portions(["a", "b", "c"], 2)]
    [2, 1]
    """
    portion: list[str] = []
    try:
        for prompt in prompts:
            portion.append(prompt)
            if len(portion) == size:
                yield portion
                portion = []
    except UsageError:  # a line that is no prompt: those before it are still answered
        if portion:
            yield portion
        raise
    if portion:
        yield portion
