"""Which commands are tried with which values: each option by its declared type, one at a time.

`BASES` has a line that works for every command; a case is such a line with one value changed. The
values of `VALUES` are what a hurried user, a script with a bug, or somebody who means harm could
give. In both, "@name" is something the worker has built, "+name" a copy that may be changed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fuzz_worker import PLUGIN, PROMPT

MODEL = ["--model", "@model"]
LENS = [*MODEL, "--lens", "@lens"]
TINY = ["--plugin", str(PLUGIN)]
TEXT = ["--corpus", "@corpus.txt"]
JSON = ["--json"]
FEW = ["--window", "16", "--tokens", "256"]
DRAWS = ["--draws", "100", "--ablate", "1", *JSON]
SHORT = ["--windows", "2", "--window", "8", "--basis-windows", "1"]
SHORT += ["--directions", "2", "--control", "2"]

BASES: dict[str, list[list[str]]] = {
    "read": [
        [PROMPT, *LENS, *JSON],
        ["--prompts", "@pairs.txt", "--summary", *LENS, *JSON],
    ],
    "generate": [[PROMPT, "--tokens", "1", *MODEL, *JSON]],
    "view": [
        ["--print", "reading", "--ask", '{"text": "One day"}', *LENS],
        ["--no-model", "--no-browser", "--host", "127.0.0.1", "@run"],
        ["--save", "page.html", "--text", "One day", *LENS],
    ],
    "evaluate": [["@stereo.jsonl", *MODEL, *JSON]],
    "model": [["@model", *JSON], ["@model", "--check", *JSON]],
    "doctor": [[*JSON]],
    "demo": [["--prompt", PROMPT, "--tokens", "200"]],
    "find-bias": [
        ["--words", "ball,dog", "--against", "car,tree", "--prompts", "@pairs.txt", *LENS, *DRAWS]
    ],
    "edit": [
        [PROMPT, "--memory", "ball", "--into", "1", "--strength", "1", *TEXT, *LENS, *JSON],
        [PROMPT, "--ablate", "1.0", *TEXT, *MODEL, *JSON],
        [PROMPT, "--scale", "1.0=2", *TEXT, *MODEL, *JSON],
        [PROMPT, "--patch", "1.0", "--from", "One day, Tom saw the", *TEXT, *MODEL, *JSON],
        [PROMPT, "--load", "@edit", *MODEL, *JSON],
    ],
    "recipes": [["tiny-mirror", *TINY, *JSON]],
    "train": [["tiny-mirror", *TINY, "--set", "epochs=1", *JSON]],
    "eval": [["+run", *TINY, *JSON], ["@translator", "@translator", "--out", "both", *JSON]],
    "trace": [
        ["@translator", "Ein Hund", *JSON],
        ["@run", "abc", *TINY, *JSON],
    ],
    "plot": [["@trace", "--png", "a.png", *JSON], ["@run", "--png", "a.png", *JSON]],
    "rescore": [["@translator", "@translator", "--n-best", "2", *JSON]],
    "translate": [["@translator", "Ein Hund", "--beam", "2", "--max-length", "9", *JSON]],
    "sample": [["@writer", "--length", "5", *JSON]],
    "lens fit": [
        [*MODEL, *TEXT, *FEW, "--rows", "4", "--out", "lens", *JSON],
        [*MODEL, *TEXT, *FEW, "--method", "train", "--steps", "2", "--out", "lens", *JSON],
    ],
    "lens eval": [["--corpus", "@other.txt", *LENS, *FEW, "--positions", "32", *JSON]],
    "lens fidelity": [
        ["--layer", "1", "--corpus", "@other.txt", *MODEL, "--lens", "+lens", *SHORT, *JSON],
    ],
    "lens transfer": [["--corpus", "@other.txt", *LENS, *FEW, *JSON]],
    "lens merge": [["@lens", "@lens2", "--out", "merged", *MODEL, *JSON]],
    "lens push": [["@lens", "somebody/lenses", *JSON]],
    "lens list": [[*JSON]],
    "heads rank": [[PROMPT, "--token", "ball", *TEXT, *MODEL, *JSON]],
    "heads roles": [["--role", "previous", *MODEL, *JSON]],
    "heads flow": [[PROMPT, "--token", "ball", *MODEL, *JSON]],
    "heads paths": [[PROMPT, "--token", "ball", "--to", "1.1", *MODEL, *JSON]],
    "heads edge": [
        [PROMPT, "--head", "1.1", "--key", "2", "--against", "1", *MODEL, *JSON],
        [PROMPT, "--head", "1.1", "--query", "4", "--key", "2", "--parts", "3", *MODEL],
    ],
    "atlas build": [[*MODEL, *TEXT, *FEW, "--every", "8", "--head", "1", "--out", "atlas", *JSON]],
    "atlas show": [["1.0", "--atlas", "@atlas", *JSON], ["--atlas", "@atlas", *JSON]],
    "atlas find": [["--where", "kl>0", "--atlas", "@atlas", *JSON]],
    "atlas merge": [["@atlas", "@atlas2", "--out", "merged", *MODEL, *JSON]],
    "atlas export": [["--to", "csv", "--out", "heads.csv", "--atlas", "@atlas"]],
    "guard fit": [["@prompts.txt", *LENS, "--out", "guard", *JSON]],
    "guard score": [[PROMPT, *LENS, "--guard", "@guard", *JSON]],
    "guard eval": [[*LENS, "--guard", "@guard", "--prompts", "10", *JSON]],
    "data list": [[*JSON]],
    "data fetch": [["multi30k", *JSON]],
}
# What cannot succeed without a network.
REFUSED = {"lens push", "data fetch"}
# Options that name a file to write: one that is there is replaced, as everybody expects.
WRITTEN = {
    *(("--png", "--gif", "--html", "--save")),
    *(("find-bias --out", "guard eval --out", "atlas export --out")),
}

# Numbers that no setting can mean are refused where the command line is read.
NUMBERS = {
    "10**23": str(10**23),
    "-10**23": str(-(10**23)),
    "nan": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "empty": "",
    "word": "many",
    "5000 digits": "9" * 5000,
    "NUL escaped": "\\x00",
}
HUGE = {"10**6": str(10**6), "10**12": str(10**12), "2**63-1": str(2**63 - 1)}
SMALL = {"-1": "-1", "0": "0", "1": "1", "-10**12": str(-(10**12))}
VALUES: dict[str, dict[str, str]] = {
    "int": {**NUMBERS, **HUGE, **SMALL, "1.5": "1.5"},
    "float": {**NUMBERS, **SMALL, "1e308": "1e308", "-1e308": "-1e308", "1e-320": "1e-320"},
    "choice": {"empty": "", "word": "no-such-choice", "long": "x" * 300, "NUL escaped": "\\x00"},
    "bool": {"with a value": "=yes"},
}
TEXTS = {
    "empty": "",
    "white": " \t ",
    "long": "x" * 300,
    "very long": "x" * 100_000,
    "many words": "a dog " * 20_000,
    "control": "a\x07\x1b[31m\x7fb\r\nc",
    "not UTF-8": "caf\udce9",
    "half a character": "\ud83d alone",
    "number": "-1",
    "nan": "nan",
    "unclosed": "{he|she [x (",
    "markup": "[/bold] [link=x",
    "dash": "-",
    "slashes": "../../..//",
    "emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 40,
}
PATHS = {
    "not there": "no/such/file.txt",
    "folder of the user": "@user/notes",
    "empty folder": "@user/nothing",
    "binary": "@user/binary.bin",
    "binary text": "@user/binary.txt",
    "latin-1": "@user/latin.txt",
    "empty file": "@user/empty.txt",
    "empty lines": "@user/empty.jsonl",
    "deep json": "@user/deep.json",
    "deep jsonl": "@user/deep.jsonl",
    "half jsonl": "@user/half.jsonl",
    "long word": "@user/long-word.txt",
    "fifo": "@user/pipe",
    "fifo text": "@user/pipe.txt",
    "fifo jsonl": "@user/pipe.jsonl",
    "loop": "@user/loop.txt",
    "null device": "/dev/null",
    "file as folder": "@user/binary.bin/inside",
    "root": "/",
}
# What an option that names a file to write replaces as it is told to; and the null device, which no
# test should endanger.
REPLACED = {"binary", "binary text", "latin-1", "empty file", "empty lines", "deep json"}
REPLACED |= {"deep jsonl", "half jsonl", "long word", "loop", "null device"}
VALUES["text"] = {**TEXTS, **PATHS}
VALUES["path"] = {k: v for k, v in VALUES["text"].items() if k not in ("nan", "many words")}
# Options whose value may be an empty text, because that is what they are without one.
FINE = {"sample --prompt empty"}
# Where only refusal is right, whatever the option.
NEVER = {
    "int": {*NUMBERS, "1.5"},
    "float": {*NUMBERS} - {"10**23", "-10**23"},
    "choice": {*VALUES["choice"]},
    "bool": {"with a value"},
    "text": {"empty", "not UTF-8", "half a character"},
    "path": {"empty", "not UTF-8", "half a character"},
}
STDIN: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 1),
    "white": (b" \n\n\t\n", 1),
    "binary": (bytes(range(256)), 40),
    "not UTF-8": (b"caf\xe9\n", 3),
    "NUL": (b"a\0b\n", 3),
    "10 MB in a line": (b"abcdefg ", 1_310_720),
    "10 MB in lines": (b"One day, Lily saw the ball, and Tom.\n", 283_399),
    "deep json": (b'{"text": ' + b"[" * 200_000, 1),
    "byte order mark": (b"\xef\xbb\xbfabc\n", 1),
    "huge number": (b'{"text": ' + b"9" * 6000 + b"}\n", 1),
}
FROM_STDIN: dict[str, list[str]] = {
    "read": ["-", *LENS, *JSON],
    "generate": ["-", "--tokens", "1", *MODEL, *JSON],
    "trace": ["@translator", "-", *JSON],
    "translate": ["@translator", "-", "--beam", "2", "--max-length", "9", *JSON],
    "guard score": ["-", *LENS, "--guard", "@guard", *JSON],
    "guard fit": ["-", *LENS, "--out", "guard", *JSON],
    "find-bias": ["--words", "ball", "--prompts", "-", *LENS, "--draws", "100", *JSON],
    "view": ["--print", "reading", "--ask", "-", *LENS],
}


@dataclass(frozen=True)
class Case:
    """A command line, and what should come of it."""

    command: str
    about: str
    """What is changed: the option and the name of the value."""
    arguments: list[str]
    stdin: bytes = b""
    times: int = 1
    """How often stdin repeats itself."""
    must_refuse: bool = False
    must_succeed: bool = False

    @property
    def name(self) -> str:
        """As the tests and the list of known failures name it."""
        return f"{self.command} {self.about}"


@dataclass(frozen=True)
class Parameter:
    """An option or argument of a command."""

    command: str
    name: str
    flag: str
    """Empty for an argument."""
    kind: str
    is_many: bool


def commands() -> dict[str, Any]:
    """Every command by its full name, as typer makes it."""
    from typer.main import get_command

    from saccade.cli.main import app

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        for each, inner in getattr(command, "commands", {}).items():
            full = f"{name} {each}".strip()
            yield from walk(inner, full) if hasattr(inner, "commands") else [(full, inner)]

    return dict(walk(get_command(app), ""))


def functions() -> dict[str, Any]:
    """The function behind every command, whose annotations declare the types."""
    from saccade.cli.main import app

    found = {each.name: each.callback for each in app.registered_commands}
    for group in app.registered_groups:
        for each in group.typer_instance.registered_commands:
            found[f"{group.name} {each.name}"] = each.callback
    return found


@cache
def parameters() -> list[Parameter]:
    """Every option and argument of every command, with the kind of its values."""
    found, declared = [], functions()
    for command, made in commands().items():
        hints = get_type_hints(declared[command], include_extras=True)
        for each in made.params:
            if each.name in hints:
                kind, is_many = kind_of(hints[each.name])
                flag = next((opt for opt in each.opts if opt.startswith("--")), "")
                found.append(Parameter(command, each.name, flag, kind, is_many))
    return found


def kind_of(annotation: Any) -> tuple[str, bool]:
    """What a declared type takes, and whether it takes several.

    >>> kind_of(Annotated[list[int] | None, "help"]), kind_of(Literal["a", "b"])
    (('int', True), ('choice', False))
    """
    if get_origin(annotation) is Annotated:
        return kind_of(get_args(annotation)[0])
    if get_origin(annotation) is list:
        return kind_of(get_args(annotation)[0])[0], True
    if get_origin(annotation) is Literal:
        return "choice", False
    if get_origin(annotation) is Union or type(annotation).__name__ == "UnionType":
        (inner,) = (each for each in get_args(annotation) if each is not type(None))
        return kind_of(inner)
    return {int: "int", float: "float", bool: "bool", str: "text", Path: "path"}[annotation], False


def cases() -> Iterator[Case]:
    """Every case there is, in a fixed order."""
    for command, bases in BASES.items():
        for number, base in enumerate(bases):
            yield Case(
                command,
                f"as it should be, {number}",
                [*command.split(), *base],
                must_succeed=command not in REFUSED,
                must_refuse=command in REFUSED,
            )
    for parameter in parameters():
        yield from cases_of(parameter)
    for command, base in FROM_STDIN.items():
        for label, (content, times) in STDIN.items():
            yield Case(command, f"stdin {label}", [*command.split(), *base], content, times)


def cases_of(parameter: Parameter) -> Iterator[Case]:
    command, flag = parameter.command, parameter.flag
    base = base_for(parameter)
    shown = flag or parameter.name.upper()
    is_written = flag in WRITTEN or f"{command} {flag}" in WRITTEN
    for label, value in VALUES[parameter.kind].items():
        if is_written and label in REPLACED:
            continue
        yield Case(
            command,
            f"{shown} {label}",
            [*command.split(), *changed(base, parameter, value)],
            must_refuse=label in NEVER[parameter.kind] and f"{command} {shown} {label}" not in FINE,
        )


def base_for(parameter: Parameter) -> list[str]:
    """The line in which an option stands already, or the first."""
    bases = BASES[parameter.command]
    return next((base for base in bases if parameter.flag and parameter.flag in base), bases[0])


def changed(base: list[str], parameter: Parameter, value: str) -> list[str]:
    """A line with another value of an option or argument."""
    flag, kind = parameter.flag, parameter.kind
    if kind == "bool":
        return [*base, f"{flag}{value}"]
    if flag:
        if flag in base:
            at = base.index(flag)
            base = [*base[:at], *base[at + 2 :]]
        return [*base, f"{flag}={value}"]
    place = [each for each in parameters() if each.command == parameter.command and not each.flag]
    at = next(number for number, each in enumerate(place) if each.name == parameter.name)
    n_given = next((n for n, word in enumerate(base) if word.startswith("--")), len(base))
    rest = base[min(at + 1, n_given) :] if at < n_given else base[n_given:]
    # Behind "--", so that "-1" is a value and no option.
    given = [*base[: min(at, n_given)], value, *rest[: n_given - at - 1]]
    return [*rest[max(0, n_given - at - 1) :], "--", *given]


def chosen(every: list[Case], n: int, *, seed: int = 0) -> list[Case]:
    """Some cases that touch every option: the working lines, then what a fixed seed draws."""
    first = [case for case in every if case.must_succeed or "as it should be" in case.about]
    rest = [case for case in every if case not in first]
    by_option: dict[str, list[Case]] = {}
    for case in rest:
        by_option.setdefault(f"{case.command} {case.about.split()[0]}", []).append(case)
    chance = random.Random(seed)
    drawn = []
    for some in by_option.values():
        chance.shuffle(some)
        drawn += list(enumerate(some))
    drawn.sort(key=lambda each: each[0])
    return [*first, *(case for _, case in drawn[: n - len(first)])]
