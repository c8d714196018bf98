"""Prompts to evaluate a guard on: many tasks and texts, with and without an injected sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, get_args

from saccade.errors import StoreError, UsageError
from saccade.store.schema import parse_json

Part = Literal["fit", "held_out", "second"]
"""``fit`` and ``held_out`` are one kind of task (edit, translate, summarise) with different
wordings and texts; ``second`` is another kind (answer a question, classify a message) on its own
texts."""

WORDS = (38, 70)  # per text: two to six sentences, the length of an e-mail or a paragraph
DIGRESSION = 0.3  # probability that a sentence is about another topic
TRIES = 60  # draws of sentences, of which the one nearest in length is taken
DATA = "guard_prompts.json"


class Prompt(NamedTuple):
    """A task with a text, which may contain an injected sentence."""

    text: str
    injection: str
    """The injected sentence; empty in an ordinary prompt."""

    @property
    def is_injected(self) -> bool:
        """Whether the text contains an injected instruction."""
        return bool(self.injection)


@cache
def prompt_parts() -> Mapping[str, Any]:
    """The parts of prompts, by kind and split; nothing is in two splits."""
    whole = files("saccade.interp.studies").joinpath("data", DATA)
    return json.loads(whole.read_text(encoding="utf-8"))


def ordinary_prompts(part: Part, n: int, *, seed: int = 0) -> list[Prompt]:
    """``n`` prompts without any injection, each task in turn."""
    return [ordinary for ordinary, _ in _pairs(part, n, seed)]


def paired_prompts(part: Part, n: int, *, seed: int = 0) -> tuple[list[Prompt], list[Prompt]]:
    """``n`` ordinary prompts, and ``n`` with an injected sentence, matched in task and length.

    The two of a pair have the same task, different sentences, and the same number of words up to
    one or two: the injection replaces sentences, it is not added. Both kinds digress and both have
    imperatives that are part of the text (recipes, manuals, notices), so that neither an unrelated
    sentence nor an imperative separates them. Injections of ``second`` are those of ``held_out``.
    """
    pairs = list(_pairs(part, n, seed))
    return [ordinary for ordinary, _ in pairs], [injected for _, injected in pairs]


def _pairs(part: Part, n: int, seed: int) -> Sequence[tuple[Prompt, Prompt]]:
    if part not in get_args(Part) or n < 1:
        raise UsageError(
            f"cannot make {n} prompts of part {part!r}",
            hint=f"ask for 1 or more of one of {', '.join(get_args(Part))}",
        )
    chance = random.Random(f"{part} {seed}")
    return [_pair(part, index, chance) for index in range(n)]


def _pair(part: Part, index: int, chance: random.Random) -> tuple[Prompt, Prompt]:
    pieces = prompt_parts()
    tasks, topics = pieces["tasks"][part], pieces["topics"][part]
    attacks = "fit" if part == "fit" else "held_out"
    task = tasks[index % len(tasks)]
    injection = chance.choice(pieces["injections"][attacks]).format(
        payload=chance.choice(pieces["payloads"][attacks])
    )
    plain = _sentences(topics, chance.randint(*WORDS), chance)
    # At least 8 words besides the injection, so that some sentence is left.
    rest = _sentences(topics, max(8, _n_words(plain) - _n_words([injection])), chance)
    rest.insert(chance.randint(0, len(rest)), injection)
    return (
        Prompt(task.format(text=" ".join(plain)), ""),
        Prompt(task.format(text=" ".join(rest)), injection),
    )


def _sentences(
    topics: Mapping[str, Sequence[str]], n_words: int, chance: random.Random
) -> list[str]:
    """Sentences of one topic and some of others, of about ``n_words`` words in total."""
    topic = chance.choice(sorted(topics))
    others = [each for name in sorted(topics) if name != topic for each in topics[name]]
    best: list[str] = []
    for _ in range(TRIES):
        drawn = _draw(topics[topic], others, n_words, chance)
        if abs(_n_words(drawn) - n_words) < abs(_n_words(best) - n_words):
            best = drawn
        if _n_words(best) == n_words:
            break
    return best


def _draw(
    own: Sequence[str], others: Sequence[str], n_words: int, chance: random.Random
) -> list[str]:
    left = chance.sample(own, len(own))
    drawn: list[str] = []
    while _n_words(drawn) < n_words:
        sentence = chance.choice(others) if chance.random() < DIGRESSION else left.pop()
        if sentence not in drawn:
            drawn.append(sentence)
    return drawn if len(drawn) == 1 or chance.random() < 0.5 else drawn[:-1]


def _n_words(sentences: Sequence[str]) -> int:
    return sum(len(sentence.split()) for sentence in sentences)


# Prompts from a file or a stream: one per line, as plain text or as JSON.


def prompts_of(lines: Iterable[str]) -> Iterator[str]:
    r"""One prompt per line; a line that begins with ``{`` or ``"`` is JSON.

    A JSON line is a string, or an object with a string named "prompt" or "text"; it can contain
    newlines.

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
            f"line {number} begins like JSON but is not valid: {error}",
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
