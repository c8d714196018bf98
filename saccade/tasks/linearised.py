"""Trees as sequences of brackets, and back again, whatever a model has written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from saccade.tasks.trees import TOP, Tree

WORD = "XX"
"""Stands for every word of a sentence."""


def linearise(tree: Tree, leaf: Callable[[Tree], str] = lambda _: WORD) -> list[str]:
    """A tree as a sequence of brackets: ``(S (NP XX )NP (VP XX )VP )S``.

    Vinyals et al., 2015, section 2.2 and figure 2 (https://arxiv.org/abs/1412.7449). All tags are
    normalised to XX as in their section 3.1, since they are not scored.

    Args:
        leaf: what stands for a leaf; ``lambda leaf: leaf.label`` keeps the tags.
    """
    return [
        leaf(node) if node.word is not None else f"{')' if is_left else '('}{node.label}"
        for node, is_left in tree.steps()
    ]


class Delinearised(NamedTuple):
    """A tree over exactly the words it was asked for."""

    tree: Tree
    n_repairs: int
    """How many brackets and words had to be added, dropped or closed: 0 if it was well formed."""


def delinearise(pieces: Sequence[str], words: Sequence[str]) -> Delinearised:
    """Read a linearised tree back, whatever a model has written.

    Vinyals et al. (section 3.2) put brackets at either end until all were balanced. Here a closing
    bracket closes the innermost open one of its label and all inside it, and is dropped if there is
    none; open ones are closed at the end; words that are left over go to the end of the tree, and
    places that no word is left for are dropped, with every bracket that held nothing else.

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
