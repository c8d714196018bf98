"""METEOR without synonyms: exact words and stems, recall before precision, order punished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import snowballstemmer

from saccade.errors import UsageError
from saccade.metrics.references import References, by_sentence, plain_words

# As many beginnings of an alignment are kept as METEOR 1.5 keeps.
_BEAM = 40


class Meteor(NamedTuple):
    """From 0 to 1, the mean over all sentences."""

    score: float
    by_sentence: tuple[float, ...]
    stages: str
    """Which words count as equal."""


class Alignment(NamedTuple):
    """How many words are matched, how many of them exactly, and in how many unbroken runs."""

    n_matches: int
    n_exact: int
    n_runs: int


def meteor(
    hypotheses: Sequence[str], references: References, *, language: str = "english"
) -> Meteor:
    """Words matched exactly or by their stem, recall counted nine times, broken order punished.

    Banerjee and Lavie, 2005 (https://aclanthology.org/W05-0909): with P and R the precision and
    recall of matched words, m matches in c runs, ``10 P R / (R + 9 P) * (1 - 0.5 (c / m)^3)``, the
    best over a sentence's references, then the mean over sentences. Own code: NLTK's cannot do
    without WordNet's data and takes the first match instead of the one with the fewest runs. The
    paper's last stage, WordNet synonyms, is left out, so numbers are a little below those of the
    Java program. Stems are Snowball's (for English, Porter's second).

    >>> round(meteor(["the cats sat"], ["the cat sat"]).score, 4)
    0.9815
    """
    if language not in snowballstemmer.algorithms():
        raise UsageError(
            f"no stems are known for {language!r}",
            hint=f"one of {', '.join(snowballstemmer.algorithms())}",
        )
    stem = snowballstemmer.stemmer(language).stemWords
    scores = []
    for hypothesis, held in zip(hypotheses, by_sentence(hypotheses, references), strict=True):
        answer = plain_words(hypothesis)
        stems = stem(answer)
        wanted = [plain_words(each) for each in held]
        scores.append(max(_score(answer, each, stems, stem(each)) for each in wanted))
    return Meteor(sum(scores) / len(scores), tuple(scores), f"exact, stem ({language})")


def _score(
    answer: list[str], reference: list[str], stems: list[str], reference_stems: list[str]
) -> float:
    found = align(answer, reference, stems, reference_stems)
    if not found.n_matches:
        return 0.0
    p, r = found.n_matches / len(answer), found.n_matches / len(reference)
    penalty = 0.5 * (found.n_runs / found.n_matches) ** 3
    return 10 * p * r / (r + 9 * p) * (1 - penalty)


def align(
    answer: Sequence[str],
    reference: Sequence[str],
    stems: Sequence[str],
    reference_stems: Sequence[str],
) -> Alignment:
    """Most matches first, then most exact ones, then fewest runs.

    The paper counts crossing lines where we count runs, which is what is punished. Beginnings of
    alignments are held in a beam; one is (matches, exact, -runs, reference words used as bits, the
    place the last word was matched to), so that the larger is the better.
    """
    nowhere = -2  # neither a place nor the one before the first
    beam = [(0, 0, 0, 0, nowhere)]
    for word, stem in zip(answer, stems, strict=True):
        grown = {(*each[:4], nowhere) for each in beam}
        for j, (other, other_stem) in enumerate(zip(reference, reference_stems, strict=True)):
            if word == other or stem == other_stem:
                grown |= {
                    (n + 1, exact + (word == other), runs - (last != j - 1), used | 1 << j, j)
                    for n, exact, runs, used, last in beam
                    if not used >> j & 1
                }
        beam = sorted(grown, reverse=True)[:_BEAM]
    n_matches, n_exact, runs, _, _ = beam[0]
    return Alignment(n_matches, n_exact, -runs)
