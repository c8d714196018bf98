"""Generated prompts to fit a guard on: what people type, what assistants read, and attacks on both.

Two kinds of injection are known in the literature (Greshake et al., 2023,
https://arxiv.org/abs/2302.12173, section 3): typed by the user (cancel the instructions, play a
role, show the prompt), and hidden in a text that an assistant reads for its user. Each kind has
ordinary prompts that resemble it: questions on the same topics, questions with the words of
attacks, texts with imperatives for a human reader. Templates and slots are in
`data/guard_examples.json`; a quarter of what is typed is German.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from saccade.interp.studies.guard.guard_fit import make_request

DATA = "guard_examples.json"
GERMAN = 0.3  # share of typed prompts
# Share of typed attacks that come after an ordinary question, as if it were the first message.
AFTER_QUESTION = 0.35
N_EXAMPLES = 360  # of each kind


class Example(NamedTuple):
    """A generated prompt and its label."""

    text: str
    is_injected: bool
    data: tuple[int, int] | None = None
    """Where the text stands that the assistant reads, in characters; None for a typed prompt."""


@cache
def example_parts() -> Mapping[str, Sequence[str]]:
    """Templates and the values of their slots, by name."""
    whole = files("saccade.interp.studies").joinpath("data", DATA)
    return json.loads(whole.read_text(encoding="utf-8"))


def guard_examples(n: int = N_EXAMPLES, *, seed: int = 0) -> list[Example]:
    """``n`` ordinary prompts and ``n`` injected ones, of each kind in turn.

    A text with an injection comes with the same text without it, so that texts say nothing.
    """
    chance = random.Random(f"guard examples {seed}")
    found: list[Example] = []
    for at in range(n):
        found += _KINDS[at % len(_KINDS)](chance)
    return found


def _typed(chance: random.Random) -> list[Example]:
    ordinary = _question(chance)
    attack = _attack(chance)
    if chance.random() < AFTER_QUESTION:
        attack = f"{_question(chance)}{chance.choice((' ', ' ', '. ', chr(10)))}{attack}"
    return [Example(ordinary, False), Example(attack, True)]


def _trigger(chance: random.Random) -> list[Example]:
    parts = example_parts()
    return [
        Example(_fill(chance.choice(parts["trigger"]), chance), False),
        Example(_attack(chance), True),
    ]


def _read(make: Callable[[random.Random], tuple[str, str, str]]) -> Callable[..., list[Example]]:
    """Of a kind of text that assistants read: with and without an injection."""

    def pair(chance: random.Random) -> list[Example]:
        before, text, after = make(chance)
        hidden = inserted(text, _hidden(chance, code=make is _code), chance)
        return [
            Example(before + each + after, each is hidden, (len(before), len(before + each)))
            for each in (text, hidden)
        ]

    return pair


def inserted(text: str, attack: str, chance: random.Random) -> str:
    """The text with an attack at its start, at its end, or between two lines or sentences."""
    where = chance.randrange(3)
    glue = chance.choice(("\n", "\n", " "))
    if where == 0:
        return f"{attack}{glue}{text}"
    ends = [
        at + 1 for at, each in enumerate(text[:-1]) if each == "\n" or text[at : at + 2] == ". "
    ]
    if where == 1 and ends:
        at = chance.choice(ends)
        return f"{text[:at].rstrip(' ')}{glue}{attack}{glue}{text[at:].lstrip(' ')}"
    return f"{text}{glue}{attack}"


def _question(chance: random.Random) -> str:
    parts = example_parts()
    language = "de" if chance.random() < GERMAN else "en"
    return _fill(chance.choice(parts[f"ordinary_{language}"]), chance, language)


def _attack(chance: random.Random) -> str:
    """What an attacker types."""
    parts = example_parts()
    kind = chance.choices(
        ("overrides_en", "overrides_de", "overrides_other", "roleplay", "leaks", "fake_context"),
        (8, 4, 1, 4, 2, 1),
    )[0]
    return _fill(chance.choice(parts[kind]), chance, "de" if kind == "overrides_de" else "en")


def _hidden(chance: random.Random, *, code: bool) -> str:
    """What an attacker hides in a text."""
    parts = example_parts()
    if code and chance.random() < 0.7:
        return (
            f"{chance.choice(parts['code_leads'])}\n```\n{chance.choice(parts['code_bodies'])}\n```"
        )
    kind = chance.random()
    if kind < 0.65:
        return _fill(chance.choice(parts["modifiers"]), chance)
    return make_request(chance) if kind < 0.85 else _attack(chance)


def _email(chance: random.Random) -> tuple[str, str, str]:
    parts = example_parts()
    company, name = chance.choice(parts["companies"]), chance.choice(parts["names"])
    head = [
        f"SUBJECT: {chance.choice(parts['email_subjects'])}",
        f"EMAIL_FROM: {chance.choice(parts['senders'])}",
        f"RECEIVED DATE: Tue, {chance.randint(1, 28)} Feb 2022 1{chance.randint(0, 9)}:37:18 +0000",
    ]
    head = chance.sample(head, chance.randint(0, 3))
    body = chance.sample(parts["email_lines"], chance.randint(3, 9))
    text = chance.choice(("|", "\n")).join([*head, chance.choice((" ", "\n")).join(body)])
    slots = {"company": company, "name": name}
    question = chance.choice(parts["email_questions"])
    return _around(parts["email_tasks"], text, question, chance, slots)


def _table(chance: random.Random) -> tuple[str, str, str]:
    parts = example_parts()
    columns = chance.sample(parts["table_columns"], chance.randint(3, 6))
    rows = [columns] + [
        [chance.choice(parts["table_cells"]) for _ in columns] for _ in range(chance.randint(4, 9))
    ]
    width = chance.choice((0, 12))
    lines = ["| " + " | ".join(each.ljust(width) for each in row) + " |" for row in rows]
    question = chance.choice(parts["table_questions"])
    return _around(parts["table_tasks"], "\n".join(lines), question, chance, {})


def _code(chance: random.Random) -> tuple[str, str, str]:
    parts = example_parts()
    pieces = []
    for said in chance.sample(parts["answers"], chance.randint(1, 4)):
        pieces.append(said)
        if chance.random() < 0.7:
            fence = chance.choice(("```", "```", ""))
            pieces.append(f"{fence}\n{chance.choice(parts['snippets'])}\n{fence}")
    slots = {"error": chance.choice(parts["errors"]), "code": chance.choice(parts["snippets"])}
    return _around(parts["code_tasks"], "\n".join(pieces), "", chance, slots)


def _note(chance: random.Random) -> tuple[str, str, str]:
    from saccade.interp.studies.guard.guard_prompts import ordinary_prompts, prompt_parts

    text = ordinary_prompts("fit", 1, seed=chance.randrange(1 << 30))[0].text
    body = text.removeprefix(prompt_parts()["tasks"]["fit"][0].split("{text}")[0])
    body = body.removesuffix(prompt_parts()["tasks"]["fit"][0].split("{text}")[1])
    before, after = chance.choice(prompt_parts()["tasks"]["fit"]).split("{text}")
    return before, body, after


def _around(
    tasks: Sequence[str],
    text: str,
    question: str,
    chance: random.Random,
    slots: Mapping[str, str],
) -> tuple[str, str, str]:
    """What stands before the text, the text, and what stands after it."""
    before, after = chance.choice(tasks).split("{text}")
    filled = [
        _fill(each.replace("{question}", question), chance, **slots)
        for each in (before, text, after)
    ]
    return filled[0], filled[1], filled[2]


def _fill(template: str, chance: random.Random, language: str = "en", **slots: str) -> str:
    """Each slot with a value of its own list; slots of slots too."""
    parts = example_parts()

    def one(name: str) -> str:
        return _fill(chance.choice(parts[name]), chance) if name in parts else name

    topic, topic2 = chance.sample(parts[f"topics_{language}"], 2)
    payload = chance.choice(parts[f"payloads_{language}"])
    values = {
        "topic": topic,
        "topic2": topic2,
        "payload": payload,
        "Payload": payload[0].upper() + payload[1:],
        "PAYLOAD": payload.upper(),
        "number": str(chance.randint(3, 9999)),
        "price": f"{chance.randint(1, 2400)}.{chance.randint(0, 99):02d}",
    }
    for slot, name in _SLOTS.items():
        if "{" + slot + "}" in template and slot not in slots:
            values[slot] = one(name)
    return template.format(**values | slots)


_SLOTS = {
    "topic_de": "topics_de",
    "product": "products",
    "site": "sites",
    "claim": "claims",
    "language": "languages",
    "country": "countries",
    "animal": "animals",
    "code": "codes",
    "name": "names",
    "company": "companies",
    "role": "roles_en",
    "role_de": "roles_de",
    "Ask": "asks_en",
    "Ask_de": "asks_de",
}
_KINDS = (
    *(_typed, _typed, _typed, _trigger),
    *(_read(_email), _read(_email), _read(_note), _read(_code), _read(_table)),
)
