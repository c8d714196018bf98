"""Multi30k: 31,014 image descriptions in English, German and French."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import NamedTuple

from saccade.errors import TaskError, UsageError
from saccade.zoo.tasks.books import read_lines, read_zip
from saccade.zoo.tasks.datasets import find_data

# Sentences and their translations, aligned by line.


class SentencePairs(NamedTuple):
    """As many source sentences as target sentences."""

    source: list[str]
    target: list[str]


class PairSplits(NamedTuple):
    """The training, validation and test parts."""

    train: SentencePairs
    valid: SentencePairs
    test: SentencePairs


def read_parallel(source: str | Path, target: str | Path) -> SentencePairs:
    """Two files (plain or ``.gz``), aligned by line.

    Files of unequal length and empty lines are refused: both mean that the alignment is lost.
    """
    source, target = Path(source), Path(target)
    pairs = SentencePairs(read_lines(source), read_lines(target))
    if len(pairs.source) != len(pairs.target):
        raise TaskError(
            f"{source} has {len(pairs.source)} lines and {target} has {len(pairs.target)}: "
            "they must be aligned by line",
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


LANGUAGES = ("de", "en", "fr")
PARTS = ("train", "val", "test_2016_flickr")


def read_multi30k(
    data: str | Path | None = None, *, source: str = "de", target: str = "en"
) -> PairSplits:
    """Task 1, raw text: 29,000 training pairs, 1,014 for validation, 1,000 of test_2016_flickr.

    Elliott et al., 2016 (https://arxiv.org/abs/1605.00459). The text is as published, neither
    tokenised nor lower-cased, so that BLEU is computed on the text that a reader sees.

    Args:
        data: the folder with data sets; without it, where `find_data` looks.
    """
    for language in (source, target):
        if language not in LANGUAGES:
            raise UsageError(
                f"multi30k has no language {language!r}", hint=f"one of {', '.join(LANGUAGES)}"
            )
    if source == target:
        raise UsageError(
            f"source and target are both {source!r}", hint="name two different languages"
        )
    folder = find_data("multi30k", data)
    parts = (read_parallel(folder / f"{p}.{source}", folder / f"{p}.{target}") for p in PARTS)
    return PairSplits(*parts)


# English sentences with their French translations, short ones first (Tatoeba, by manythings).

# The data has no official parts. Of each hundred English sentences one is for the test and one for
# validation: about 1,700 of each, and nearly all data for training.
_OF, _VALID, _TEST = 100, 0, 1


def read_fra_eng(data: str | Path | None = None, *, max_words: int | None = None) -> PairSplits:
    """English to French, split by a checksum of the English sentence.

    The same English sentence occurs in the file with several translations; the checksum keeps all
    of them in one part, so that no test sentence is in the training data. Swap source and target
    for French to English.

    Args:
        max_words: leaves out pairs with more words than this on either side.
    """
    path = find_data("fra-eng", data) / "fra-eng.zip"
    ((name, text),) = read_zip(path, "*fra.txt").items()
    parts = PairSplits(*(SentencePairs([], []) for _ in range(3)))
    chosen = {_VALID: parts.valid, _TEST: parts.test}
    for number, line in enumerate(text.rstrip("\n").split("\n"), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or not (fields[0].strip() and fields[1].strip()):
            raise TaskError(
                f"{name} in {path} line {number} is no pair: expected English, a tab, French",
                hint="fetch it again with `saccade data fetch fra-eng`",
            )
        if max_words is None or max(len(side.split()) for side in fields[:2]) <= max_words:
            # The same on every machine and in every run.
            part = chosen.get(zlib.crc32(fields[0].encode()) % _OF, parts.train)
            part.source.append(fields[0])
            part.target.append(fields[1])
    return parts
