"""NLTK's sample of the Penn Treebank: 3,914 parsed sentences of the Wall Street Journal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from saccade.tasks.fetch import find_data
from saccade.tasks.text_files import read_zip
from saccade.tasks.trees import Tree, plain_tree, read_trees


class TreeSplits(NamedTuple):
    """What to learn from, what to choose by, what to report."""

    train: list[Tree]
    valid: list[Tree]
    test: list[Tree]


def read_treebank(data: str | Path | None = None, *, max_words: int | None = None) -> TreeSplits:
    """Plain trees (no traces, no function tags), split by file.

    The sample is what is free of the Wall Street Journal part (files 1 to 199), so the usual
    sections 2-21, 22 and 23 are not in it. Files whose number ends in 9 are the test, those in 8
    are for choosing, so that no article is in two parts and each part has all kinds of them.

    Args:
        max_words: leaves out sentences with more words than this.
    """
    path = find_data("treebank", data) / "treebank.zip"
    splits = TreeSplits([], [], [])
    for name, text in read_zip(path, "*combined/wsj_*.mrg").items():
        kept = [tree for tree in map(plain_tree, read_trees(text, name)) if tree is not None]
        splits[part_of(name)].extend(
            tree for tree in kept if max_words is None or len(tree.words()) <= max_words
        )
    return splits


def part_of(name: str) -> int:
    """The part a file belongs to: 0 to learn from, 1 to choose by, 2 to report.

    >>> [part_of(f"combined/wsj_{n:04}.mrg") for n in (7, 18, 199)]
    [0, 1, 2]
    """
    return {"8": 1, "9": 2}.get(re.sub(r"\D", "", Path(name).stem)[-1:], 0)


def word_class(word: str) -> str:
    """A name for words of one look, for words too rare to be learnt one by one.

    After Petrov et al., 2006 ("Learning accurate, compact, and interpretable tree annotation"), who
    replace rare words by their features; fewer here, for a sample a thirteenth as large as theirs.

    >>> [word_class(word) for word in ("1,234.5", "Gorbachev", "cross-border", "reselling", "IBM")]
    ['<0>', '<Aa>', '<a-a>er', '<a>ing', '<A>']
    """
    if any(letter.isdigit() for letter in word):
        return "<0>"
    if word.isupper():
        return "<A>"
    shape = "Aa" if word[:1].isupper() else "a-a" if "-" in word else "a"
    ending = next((e for e in _ENDINGS if word.endswith(e) and len(word) > len(e) + 2), "")
    return f"<{shape}>{ending}"


_ENDINGS = ("ing", "ion", "ity", "ous", "ble", "est", "ed", "er", "ly", "al", "ic", "s", "y")
