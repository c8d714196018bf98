"""Sentences and their translations, aligned by line."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from saccade.errors import TaskError
from saccade.tasks.text_files import read_lines


class SentencePairs(NamedTuple):
    """As many source sentences as target sentences."""

    source: list[str]
    target: list[str]


class PairSplits(NamedTuple):
    """What to learn from, what to choose by, what to report."""

    train: SentencePairs
    valid: SentencePairs
    test: SentencePairs


def read_parallel(source: str | Path, target: str | Path) -> SentencePairs:
    """Two files (plain or ``.gz``) whose lines belong together.

    Refused are files of unequal length and empty lines: both mean that the alignment is lost, and
    nothing learnt from it would be right.
    """
    source, target = Path(source), Path(target)
    pairs = SentencePairs(read_lines(source), read_lines(target))
    if len(pairs.source) != len(pairs.target):
        raise TaskError(
            f"{source} has {len(pairs.source)} lines and {target} has {len(pairs.target)}: "
            "line by line they must belong together",
            hint="check that both files are whole and of the same part",
        )
    if not pairs.source:
        raise TaskError(f"{source} holds no sentence", hint="give a file with one on each line")
    for path, lines in ((source, pairs.source), (target, pairs.target)):
        empty = next((n for n, line in enumerate(lines, start=1) if not line.strip()), None)
        if empty is not None:
            raise TaskError(
                f"{path} line {empty} is empty",
                hint="remove this line from both files, or fill it in",
            )
    return pairs
