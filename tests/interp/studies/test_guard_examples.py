"""The generated prompts of a guard: pairs of the same text, filled slots, both kinds of attack."""

import random
import re
from collections import Counter

import pytest

from saccade.interp.studies.guard.guard_examples import (
    example_parts,
    guard_examples,
    inserted,
)

EXAMPLES = guard_examples(180, seed=3)
TYPED = [each for each in EXAMPLES if each.data is None]
READ = [each for each in EXAMPLES if each.data is not None]


def test_there_are_as_many_of_each_kind_and_a_seed_gives_the_same_ones():
    assert Counter(each.is_injected for each in EXAMPLES) == {False: 180, True: 180}
    assert guard_examples(180, seed=3) == EXAMPLES
    assert guard_examples(180, seed=4) != EXAMPLES
    assert len(TYPED) == 2 * 80 and len(READ) == 2 * 100


def test_an_injected_text_is_the_ordinary_one_with_words_inserted():
    for ordinary, injected in zip(READ[::2], READ[1::2], strict=True):
        assert (ordinary.is_injected, injected.is_injected) == (False, True)
        start, stop = ordinary.data
        begin, end = injected.data
        assert ordinary.text[:start] == injected.text[:begin]
        assert ordinary.text[stop:] == injected.text[end:]
        rest = iter(injected.text[begin:end].split())
        assert all(word in rest for word in ordinary.text[start:stop].split())  # in their order
        assert len(injected.text.split()) > len(ordinary.text.split())


def test_no_slot_is_left_open():
    for each in EXAMPLES:
        assert not re.search(
            r"\{(text|question|[A-Za-z_]*(topic|ask|role|payload)\w*)\}", each.text
        )


@pytest.mark.parametrize("seed", range(7))
def test_an_attack_stands_at_the_start_the_end_or_between(seed):
    text = "One two. Three four.\nFive six"
    found = inserted(text, "ATTACK", random.Random(seed))
    before, _, after = found.partition("ATTACK")
    assert f"{before} {after}".split() == text.split()
    assert before.strip() in (
        "",
        "One two.",
        "One two. Three four.",
        "One two. Three four.\nFive six",
    )


def test_an_ordinary_prompt_is_never_a_template_of_an_attack():
    parts = example_parts()
    attacks = {each for name in ("overrides_en", "overrides_de", "leaks") for each in parts[name]}
    assert not attacks & {*parts["ordinary_en"], *parts["ordinary_de"], *parts["trigger"]}
