"""Constituency trees: read from brackets, made plain, compared with others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from saccade.errors import TaskError
from saccade.metrics.brackets import Bracket, BracketScore, score_brackets
from saccade.metrics.references import check_counts

TOP = "TOP"
"""Holds several trees together where there should be one; never counted."""
TRACE = "-NONE-"
# EVALB's own list (COLLINS.prm): these words are taken out before brackets are compared.
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
# A leaf with its tag and word; or an opening bracket with its label, if any; or a closing one; or
# what should not be there.
_PIECE = re.compile(r"\(([^\s()]+)\s+([^\s()]+)\s*\)|\(\s*([^\s()]*)|(\))|([^\s()]+)")
_TAGS = re.compile(r"[-=|].*")


class Tree(NamedTuple):
    """A label over smaller trees, or (a leaf) a part-of-speech tag over one word."""

    label: str
    children: tuple[Tree, ...] = ()
    word: str | None = None

    def steps(self) -> Iterator[tuple[Tree, bool]]:
        """Each node from left to right; True where it is left again. A leaf is only entered.

        A loop instead of recursion, because a long sentence's tree can be deep.
        """
        ahead: list[tuple[Tree, bool]] = [(self, False)]
        while ahead:
            node, is_left = ahead.pop()
            yield node, is_left
            if not is_left and node.word is None:
                ahead.append((node, True))
                ahead.extend((child, False) for child in reversed(node.children))

    def leaves(self) -> list[Tree]:
        """The tags with their words, from left to right."""
        return [node for node, _ in self.steps() if node.word is not None]

    def words(self) -> list[str]:
        """The sentence."""
        return [node.word for node, _ in self.steps() if node.word is not None]

    def __str__(self) -> str:
        written = ""
        for node, is_left in self.steps():
            leaf = "" if node.word is None else f" {node.word})"
            written += ")" if is_left else f" ({node.label}{leaf}"
        return written.strip()


def read_trees(text: str, where: str = "this text") -> list[Tree]:
    """The trees written in a text as ``(S (NP (NNP John)) (VP (VBZ sleeps)))``.

    The unlabelled brackets around each tree of the Penn Treebank are taken off.

    >>> [tree.words() for tree in read_trees("( (S (NP (NNP John)) (VP (VBZ sleeps))) )")]
    [['John', 'sleeps']]
    """
    trees: list[Tree] = []
    stack: list[tuple[str, list[Tree]]] = []
    for tag, word, label, close, stray in _PIECE.findall(text):
        if tag:
            (stack[-1][1] if stack else trees).append(Tree(tag, (), word))
        elif stray or (close and not stack):
            raise _broken(where, f"unexpected {(stray or close)!r}")
        elif close:
            name, children = stack.pop()
            if not children:
                raise _broken(where, f"({name} holds nothing")
            is_wrapper = not name and len(children) == 1
            tree = children[0] if is_wrapper else Tree(name or TOP, tuple(children))
            (stack[-1][1] if stack else trees).append(tree)
        else:
            stack.append((label, []))
    if stack:
        raise _broken(where, f"({stack[-1][0]} is never closed")
    return trees


def _broken(where: str, what: str) -> TaskError:
    return TaskError(f"{where} holds a broken tree: {what}", hint="check its brackets")


def plain_tree(tree: Tree) -> Tree | None:
    """The tree without traces and function tags, or None if nothing but traces was in it.

    What parsers are trained and scored on: empty elements (``-NONE-``) are removed with all that
    held nothing else, and ``NP-SBJ-1``, ``NP=2`` and ``ADVP|PRT`` become NP, NP and ADVP.

    >>> print(plain_tree(read_trees("(S (NP-SBJ-1 (-NONE- *)) (VP=2 (VB Go)))")[0]))
    (S (VP (VB Go)))
    """
    kept: list[list[Tree]] = [[]]
    for node, is_left in tree.steps():
        if node.word is not None:
            if node.label != TRACE:
                kept[-1].append(node)
        elif not is_left:
            kept.append([])
        elif children := kept.pop():
            kept[-1].append(Tree(_TAGS.sub("", node.label), tuple(children)))
    return kept[0][0] if kept[0] else None


def brackets_of(tree: Tree, skip: frozenset[int] = frozenset()) -> list[Bracket]:
    """Each constituent with the words it spans; tags, TOP and empty spans are no constituents.

    Args:
        skip: places of words that do not count (punctuation).
    """
    found: list[Bracket] = []
    begun: list[int] = []
    place = counted = 0
    for node, is_left in tree.steps():
        if node.word is not None:
            counted += place not in skip
            place += 1
        elif not is_left:
            begun.append(counted)
        elif (start := begun.pop()) < counted and node.label != TOP:
            found.append(Bracket(node.label, start, counted))
    return found


def score_trees(gold: Sequence[Tree], predicted: Sequence[Tree]) -> BracketScore:
    """Labelled bracket F1 of trees over the same sentences, punctuation not counted.

    What is punctuation is told by the gold tags, because a predicted tree has none.
    """
    check_counts(gold, predicted, "predicted trees", "gold trees")
    for number, (right, guess) in enumerate(zip(gold, predicted, strict=True), start=1):
        if right.words() != guess.words():
            raise TaskError(
                f"tree {number} is over {len(guess.words())} words and its gold tree over "
                f"{len(right.words())}, or over others",
                hint="make predicted trees with `delinearise`, which keeps the words",
            )
    skips = [
        frozenset(at for at, leaf in enumerate(tree.leaves()) if leaf.label in PUNCTUATION)
        for tree in gold
    ]
    return score_brackets(
        [brackets_of(tree, skip) for tree, skip in zip(gold, skips, strict=True)],
        [brackets_of(tree, skip) for tree, skip in zip(predicted, skips, strict=True)],
    )
