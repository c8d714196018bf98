"""Stretched words: each letter lasts some frames, with silences between, as in slow speech.

An online model must learn without supervision where one letter ends and the next begins. Such
models are made for real speech; this is a minimal substitute. The words are real.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase
from typing import NamedTuple

import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.datasets import generator_of

SILENCE = "_"
SHORTEST, LONGEST = 2, 12
"""Letters in a word; longer words are rare."""


class WordSplits(NamedTuple):
    """Training, validation and test words; no word is in two parts."""

    train: list[str]
    valid: list[str]
    test: list[str]


def split_vocabulary(texts: Iterable[str]) -> WordSplits:
    """The different words of some texts, every tenth for validation and every tenth for the test.

    >>> split_vocabulary(["the quick brown fox", "jumps over a lazy dog that was asleep"]).test
    ['the']
    """
    words = {word for text in texts for word in re.findall(r"[a-z]+", text.lower())}
    kept = sorted(word for word in words if SHORTEST <= len(word) <= LONGEST)
    valid, test = kept[8::10], kept[9::10]
    held_out = {*valid, *test}
    found = WordSplits([word for word in kept if word not in held_out], valid, test)
    if not found.test:
        raise UsageError(
            f"{len(kept)} different words are too few to hold some out",
            hint="give a text with at least ten",
        )
    return found


class Stretched(NamedTuple):
    """A stretched word."""

    frames: str
    """A letter or a silence each."""
    onsets: list[int]
    """The first frame of each letter."""


def stretch(
    words: Sequence[str], *, longest_hold: int, noise: float, seed: int, epoch: int = 0
) -> list[Stretched]:
    """Stretch each word; depends only on ``(seed, epoch)``.

    Each letter is held for 1 to ``longest_hold`` frames, after 0 to 2 frames of silence, or 1 to 2
    where the letter before is the same: otherwise "ll" would equal a long "l".

    >>> stretch(["hello"], longest_hold=3, noise=0.0, seed=1)
    [Stretched(frames='__heelll__ll__ooo', onsets=[2, 3, 5, 10, 14])]

    Args:
        noise: Fraction of frames that are replaced by a random letter.
    """
    generator = generator_of(seed, epoch)
    n = sum(map(len, words))
    held = iter(torch.randint(1, longest_hold + 1, (n,), generator=generator).tolist())
    silent = iter(torch.randint(0, 3, (n,), generator=generator).tolist())
    said = [_stretched(word, held, silent) for word in words]
    return _with_noise(said, noise=noise, generator=generator) if noise else said


def _stretched(word: str, held: Iterator[int], silent: Iterator[int]) -> Stretched:
    frames, onsets, before = "", [], ""
    for letter in word:
        frames += SILENCE * max(next(silent), letter == before)
        onsets.append(len(frames))
        frames += letter * next(held)
        before = letter
    return Stretched(frames, onsets)


def _with_noise(
    said: Sequence[Stretched], *, noise: float, generator: torch.Generator
) -> list[Stretched]:
    n = sum(len(word.frames) for word in said)
    lost = iter((torch.rand(n, generator=generator) < noise).tolist())
    other = iter(torch.randint(len(ascii_lowercase), (n,), generator=generator).tolist())
    return [
        word._replace(
            frames="".join(
                ascii_lowercase[instead] if is_lost else frame
                for frame, is_lost, instead in zip(word.frames, lost, other, strict=False)
            )
        )
        for word in said
    ]
