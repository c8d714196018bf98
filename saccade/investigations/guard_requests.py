"""Ordinary prompts with an ordinary request put into them: what a guard learns from.

An injected prompt is a text with an order to the model where none belongs. A guard is shown no
attack: the orders are what people ask of an assistant every day ("List five facts about whales."),
and the place is between two sentences of an ordinary prompt.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

DATA = "guard_requests.json"
OWN = 0.2  # share of requests that are the first sentence of another prompt: mostly its task
PLAIN = 0.08  # share of requests that are the bare task, without any frame around it
_SENTENCE_END = re.compile(r"(?<=[.!?\"])[ \n]+")


@cache
def request_parts() -> Mapping[str, Sequence[str]]:
    """What requests are made of: frames, things to do, how to do them, roles."""
    whole = files("saccade.investigations").joinpath("data", DATA)
    return json.loads(whole.read_text(encoding="utf-8"))


def make_request(chance: random.Random) -> str:
    """Something that one may ask of an assistant.

    >>> make_request(random.Random(3)).endswith((".", "?", "!"))
    True
    """
    parts = request_parts()
    do, also = chance.sample(parts["do"], 2)
    how, role = chance.choice(parts["how"]), chance.choice(parts["role"])
    frame = "{Do}." if chance.random() < PLAIN else chance.choice(parts["frames"])
    return frame.format(do=do, Do=do[0].upper() + do[1:], also=also, how=how, role=role)


def splice_requests(prompts: Sequence[str], *, seed: int = 0) -> list[str]:
    """Into each prompt one request, at the end of some sentence of it."""
    chance = random.Random(f"requests {seed}")
    found = []
    for prompt in prompts:
        request = make_request(chance)
        if chance.random() < OWN:
            request = _SENTENCE_END.split(chance.choice(prompts).strip())[0]
        ends = [match.start() for match in _SENTENCE_END.finditer(prompt)] or [len(prompt)]
        at = chance.choice(ends)
        found.append(f"{prompt[:at]} {request}{prompt[at:]}")
    return found
