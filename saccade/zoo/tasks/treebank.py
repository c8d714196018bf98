"""NLTK's sample of the Penn Treebank: 3,914 parsed sentences of the Wall Street Journal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from saccade.errors import TaskError
from saccade.zoo.metrics.sequence_metrics import Bracket, BracketScore, score_brackets
from saccade.zoo.metrics.translation_metrics import check_counts
from saccade.zoo.tasks.books import read_zip
from saccade.zoo.tasks.datasets import find_data

# Constituency trees: parsed from brackets, simplified, compared.

TOP = "TOP"
"""Root over several trees where there should be one; never counted."""
TRACE = "-NONE-"
# EVALB's own list (COLLINS.prm): these words are removed before brackets are compared.
PUNCTUATION = frozenset({",", ":", "``", "''", "."})
# A leaf with its tag and word; or an opening bracket with its label, if any; or a closing one; or
# an unexpected character.
_PIECE = re.compile(r"\(([^\s()]+)\s+([^\s()]+)\s*\)|\(\s*([^\s()]*)|(\))|([^\s()]+)")
_TAGS = re.compile(r"[-=|].*")


class Tree(NamedTuple):
    """A label over smaller trees, or (a leaf) a part-of-speech tag over one word."""

    label: str
    children: tuple[Tree, ...] = ()
    word: str | None = None

    def steps(self) -> Iterator[tuple[Tree, bool]]:
        """Each node from left to right; True when it is left. A leaf is only entered.

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

    The unlabelled brackets around each tree of the Penn Treebank are removed.

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
    """The tree without traces and function tags, or None if it held only traces.

    The form on which parsers are trained and scored: empty elements (``-NONE-``) are removed with
    all brackets that held nothing else, and ``NP-SBJ-1``, ``NP=2`` and ``ADVP|PRT`` become NP, NP
    and ADVP.

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
    """Each constituent with the words it spans; tags, TOP and empty spans are not constituents.

    Args:
        skip: positions of words that do not count (punctuation).
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

    Punctuation is identified by the gold tags, because a predicted tree has none.
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


class TreeSplits(NamedTuple):
    """The training, validation and test parts."""

    train: list[Tree]
    valid: list[Tree]
    test: list[Tree]


def read_treebank(data: str | Path | None = None, *, max_words: int | None = None) -> TreeSplits:
    """Simplified trees (no traces, no function tags), split by file.

    The sample is the free portion of the Wall Street Journal part (files 1 to 199), so the usual
    sections 2-21, 22 and 23 are not in it. Files whose number ends in 9 are the test, those in 8
    are the validation part, so that no article is in two parts and all kinds of articles are in
    each.

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
    """The part of a file: 0 training, 1 validation, 2 test.

    >>> [part_of(f"combined/wsj_{n:04}.mrg") for n in (7, 18, 199)]
    [0, 1, 2]
    """
    return {"8": 1, "9": 2}.get(re.sub(r"\D", "", Path(name).stem)[-1:], 0)


def word_class(word: str) -> str:
    """A class of words with the same shape, for words too rare to have an embedding.

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


# Trees as sequences of brackets, and back, from any output of a model.

WORD = "XX"
"""Stands for every word of a sentence."""


def linearise(tree: Tree, leaf: Callable[[Tree], str] = lambda _: WORD) -> list[str]:
    """A tree as a sequence of brackets: ``(S (NP XX )NP (VP XX )VP )S``.

    Vinyals et al., 2015, section 2.2 and figure 2 (https://arxiv.org/abs/1412.7449). All tags are
    normalised to XX as in their section 3.1, since they are not scored.

    Args:
        leaf: the symbol of a leaf; ``lambda leaf: leaf.label`` keeps the tags.
    """
    return [
        leaf(node) if node.word is not None else f"{')' if is_left else '('}{node.label}"
        for node, is_left in tree.steps()
    ]


class Delinearised(NamedTuple):
    """A tree over exactly the words it was asked for."""

    tree: Tree
    n_repairs: int
    """Number of brackets and words that were added, dropped or closed: 0 if well formed."""


def delinearise(pieces: Sequence[str], words: Sequence[str]) -> Delinearised:
    """Parse a linearised tree from any output of a model.

    Vinyals et al. (section 3.2) put brackets at either end until all were balanced. Here a closing
    bracket closes the innermost open one of its label and all inside it, and is dropped if there is
    none; open ones are closed at the end; left-over words go to the end of the tree, and leaves
    without a word are dropped, with every bracket that held nothing else.

    >>> done = delinearise("(S (NP XX )NP (VP XX (NP XX".split(), ["John", "has", "dogs", "."])
    >>> print(done.tree, done.n_repairs)
    (S (NP (XX John)) (VP (XX has) (NP (XX dogs))) (XX .)) 4
    """
    left = list(reversed(words))
    stack: list[tuple[str, list[Tree]]] = [(TOP, [])]
    n_repairs = 0
    for piece in pieces:
        side, label = piece[:1], piece[1:]
        if side == "(" and label:
            stack.append((label, []))
        elif side == ")" and label:
            # How many are open inside the innermost one of this label.
            inside = (k for k, (open_, _) in enumerate(reversed(stack[1:])) if open_ == label)
            depth = next(inside, None)
            n_repairs += 1 if depth is None else depth + _close(stack, depth + 1)
        elif left:
            stack[-1][1].append(Tree(WORD, word=left.pop()))
        else:
            n_repairs += 1
    n_open = len(stack) - 1
    n_repairs += n_open + _close(stack, n_open)
    return _finished(stack[0][1], list(reversed(left)), n_repairs)


def _close(stack: list[tuple[str, list[Tree]]], n: int) -> int:
    """Close the innermost ``n`` open brackets; those that hold nothing are dropped and counted."""
    n_dropped = 0
    for _ in range(n):
        label, children = stack.pop()
        if children:
            stack[-1][1].append(Tree(label, tuple(children)))
        else:
            n_dropped += 1
    return n_dropped


def _finished(roots: list[Tree], left: list[str], n_repairs: int) -> Delinearised:
    rest = tuple(Tree(WORD, word=word) for word in left)
    n_repairs += len(rest)
    if len(roots) == 1 and roots[0].word is None:
        tree = roots[0]._replace(children=roots[0].children + rest)
    else:
        tree = Tree(TOP, (*roots, *rest))
        n_repairs += 1
    return Delinearised(tree, n_repairs)
