"""Requests that are put into ordinary prompts: no attack among them, and whole sentences."""

import random
import re

from saccade.interp.studies.guard.guard_fit import make_request, request_parts, splice_requests
from saccade.interp.studies.guard.guard_prompts import ordinary_prompts, prompt_parts

PROMPTS = [each.text for each in ordinary_prompts("fit", 53)]


def test_no_part_of_a_request_is_part_of_an_attack():
    """Neither of those that are held out nor of the others."""
    parts = prompt_parts()
    attacks = [*parts["injections"].values(), *parts["payloads"].values()]
    known = {each.lower() for part in attacks for each in part}
    requests = " ".join(each.lower() for part in request_parts().values() for each in part)
    assert not any(payload in requests for part in parts["payloads"].values() for payload in part)
    assert not known & {each.lower() for part in request_parts().values() for each in part}
    for token in ("ignore", "disregard", "forget", "instead", "previous", "above", "override"):
        assert not re.search(rf"\b{token}\b", requests)


def test_requests_are_whole_sentences_and_many():
    chance = random.Random(0)
    made = [make_request(chance) for _ in range(500)]
    assert len(set(made)) > 400
    assert not any("{" in each or "}" in each for each in made)
    assert all(each[0].isupper() for each in made)


def test_a_spliced_prompt_is_the_prompt_with_something_between_its_sentences():
    for spliced, prompt in zip(splice_requests(PROMPTS, seed=1), PROMPTS, strict=True):
        n_added = len(spliced) - len(prompt)
        assert n_added > 5
        cuts = range(len(prompt) + 1)
        assert any(spliced[:at] + spliced[at + n_added :] == prompt for at in cuts)


def test_the_same_seed_gives_the_same_and_another_seed_others():
    assert splice_requests(PROMPTS, seed=2) == splice_requests(PROMPTS, seed=2)
    assert splice_requests(PROMPTS, seed=2) != splice_requests(PROMPTS, seed=3)


def test_a_prompt_without_sentences_gets_its_request_at_the_end():
    (found,) = splice_requests(["one two three"])
    assert found.startswith("one two three ")
