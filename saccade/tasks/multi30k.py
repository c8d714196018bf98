"""Multi30k: 31,014 image descriptions in English, German and French."""

from pathlib import Path

from saccade.errors import UsageError
from saccade.tasks.fetch import find_data
from saccade.tasks.sentence_pairs import PairSplits, read_parallel

LANGUAGES = ("de", "en", "fr")
PARTS = ("train", "val", "test_2016_flickr")


def read_multi30k(
    data: str | Path | None = None, *, source: str = "de", target: str = "en"
) -> PairSplits:
    """Task 1, raw text: 29,000 pairs to learn from, 1,014 to choose by, 1,000 of test_2016_flickr.

    Elliott et al., 2016 (https://arxiv.org/abs/1605.00459). The text is as its makers publish it,
    neither tokenised nor lower-cased, so that BLEU is taken on what a reader would see.

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
