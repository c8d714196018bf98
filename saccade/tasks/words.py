"""Text into words and back: punctuation stands alone, and remembers what it touched."""

import re
from collections.abc import Iterable

JOINT = "￭"
"""Marks the side of a punctuation mark on which there was no space."""

# A word may hold apostrophes, hyphens, points and commas, but only inside: don't, 3.5, U.S
_PARTS = re.compile(r"\w+(?:['\u2019.,-]\w+)*|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Words and punctuation marks, such that `join_words` gives the text back.

    The idea is OpenNMT's "joiner": a mark that touched its neighbour carries a sign on that side,
    so that a translation can be written out again without a language's rules. Spaces count as one.

    >>> split_words("A dog (small), isn't it?")
    ['A', 'dog', '(￭', 'small', '￭)', '￭,', "isn't", 'it', '￭?']
    """
    words: list[str] = []
    end = -1  # of the part before
    for part in _PARTS.finditer(text.replace(JOINT, " ")):
        word = part.group()
        if part.start() == end:
            if _is_mark(word):
                word = JOINT + word
            else:  # then the part before is a mark: two words cannot touch
                words[-1] += JOINT
        words.append(word)
        end = part.end()
    return words


def join_words(words: Iterable[str]) -> str:
    """The text that `split_words` was given, with single spaces.

    >>> join_words(split_words("A dog (small), isn't it?"))
    "A dog (small), isn't it?"
    """
    return re.sub(f" ?{JOINT} ?", "", " ".join(words))


def _is_mark(word: str) -> bool:
    return len(word) == 1 and not word.isalnum() and word != "_"
