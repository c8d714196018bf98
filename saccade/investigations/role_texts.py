"""Generated texts on which the roles of heads show: repeated random tokens, and two names."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from saccade.errors import ModelError
from saccade.investigations.bias_words import behind_a_space

if TYPE_CHECKING:
    from saccade.heads import LanguageModel

# Olsson et al., 2022: 25 random tokens, said four times.
BLOCK, REPEATS = 25, 4
NAMES = (
    *("Mary", "John", "Tom", "James", "Dan", "Sarah", "Emma", "Anna", "Peter", "Paul"),
    *("Mark", "David", "Alice", "Kate", "Laura", "Simon", "Adam", "Jack", "Rose", "Ben"),
)
PLACES = ("store", "park", "school", "office", "station", "garden", "library", "market")
THINGS = ("book", "ball", "drink", "letter", "flower", "ticket", "cake", "pen")
# Wang et al., 2022, appendix: the shapes of their prompts, in words of our own.
SHAPES = (
    "When {a} and {b} went to the {place}, {s} gave a {thing} to",
    "After {a} and {b} met at the {place}, {s} handed a {thing} to",
    "While {a} and {b} were sitting in the {place}, {s} passed a {thing} to",
    "{a} and {b} had a long walk to the {place}. Then {s} offered a {thing} to",
)


class RepeatedBlocks(NamedTuple):
    """Rows of random tokens that are said again and again."""

    ids: Int[Tensor, "batch pos"]
    block: int
    start: int
    """How many tokens stand before the first block."""


class NameTexts(NamedTuple):
    """Prompts that end where the name comes that was said only once."""

    ids: Int[Tensor, "batch pos"]
    once: Int[Tensor, " batch"]
    """The token of the name said once: the indirect object."""
    twice: Int[Tensor, " batch"]
    """The token of the name said twice: the subject."""
    place: Int[Tensor, " batch"]
    """Where the name said once stands."""


def repeated_blocks(
    model: LanguageModel, *, rows: int, seed: int, block: int = BLOCK, repeats: int = REPEATS
) -> RepeatedBlocks:
    """Random tokens of the vocabulary, each row another block.

    The first and last tenth of the vocabulary are left out: special tokens, single bytes and the
    rarest pieces are at its ends. Where the tokenizer begins a text with a token of its own, the
    rows do too.
    """
    generator = torch.Generator().manual_seed(seed)
    low, high = model.d_vocab // 10, model.d_vocab * 9 // 10
    # Without repetition inside a block, so that a token has one earlier place in each of them.
    drawn = [low + torch.randperm(high - low, generator=generator)[:block] for _ in range(rows)]
    ids = torch.stack(drawn).repeat(1, repeats)
    start = len(model.encoding.prefix)
    return RepeatedBlocks(model.encoding.with_prefix(ids).to(model.device), block, start)


def name_texts(model: LanguageModel, *, rows: int, seed: int) -> NameTexts:
    """Prompts with two names, all of as many tokens; the order of the names changes by turns."""
    chance = random.Random(seed)
    names = [name for name in NAMES if len(behind_a_space(model, name)) == 1]
    if len(names) < 4:
        raise ModelError(
            f"{model.name} splits names into pieces: no prompts with two names can be made",
            hint="ask for the other roles",
        )
    # Prompts of one shape and words of one token have one length; others are left out.
    texts: dict[int, list[tuple[Tensor, int, int]]] = {}
    for turn in range(20 * rows):
        once, twice = chance.sample(names, 2)
        a, b = (once, twice) if turn % 2 else (twice, once)
        words = {"place": chance.choice(PLACES), "thing": chance.choice(THINGS)}
        ids = model.encode(chance.choice(SHAPES).format(a=a, b=b, s=twice, **words))[0]
        tokens = [behind_a_space(model, name)[0] for name in (once, twice)]
        if (ids == tokens[0]).sum() == 1:  # a first word may be another token than elsewhere
            same = texts.setdefault(len(ids), [])
            same.append((ids, tokens[0], tokens[1]))
            if len(same) == rows:
                break
    ids, once, twice = zip(*max(texts.values(), key=len), strict=True)
    rows_of_ids, wanted = torch.stack(ids), torch.tensor(once, device=model.device)
    place = (rows_of_ids == wanted[:, None]).int().argmax(1)
    return NameTexts(rows_of_ids, wanted, torch.tensor(twice, device=model.device), place)
