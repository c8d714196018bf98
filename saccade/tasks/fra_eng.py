"""English sentences with their French translations, short ones first (Tatoeba, by manythings)."""

import zlib
from pathlib import Path

from saccade.errors import TaskError
from saccade.tasks.fetch import find_data
from saccade.tasks.sentence_pairs import PairSplits, SentencePairs
from saccade.tasks.text_files import read_zip

# The data has no official parts. Of each hundred English sentences one is for the test and one to
# choose by, which leaves about 1,700 of each and does not starve the training.
_OF, _VALID, _TEST = 100, 0, 1


def read_fra_eng(data: str | Path | None = None, *, max_words: int | None = None) -> PairSplits:
    """English to French, split by a checksum of the English sentence.

    The same English sentence stands in the file with several translations; the checksum keeps all
    of them in one part, so that no test sentence was learnt from. Turn a part round for French to
    English.

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
