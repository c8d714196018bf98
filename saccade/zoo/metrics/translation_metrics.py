"""Metrics of translations: BLEU, chrF, TER, METEOR and LEPOR."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence, Sized
from typing import Any, NamedTuple

import snowballstemmer
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from saccade.errors import UsageError

# Inputs of all text metrics: one answer per sentence, and one or several references.

References = Sequence[str | Sequence[str]]
"""For each sentence its reference, or a list of several."""


def check_counts(wanted: Sized, found: Sized, answers: str, references: str) -> None:
    """Refuse lists of different lengths, and empty ones."""
    if len(wanted) != len(found):
        raise UsageError(
            f"{len(found)} {answers} and {len(wanted)} {references}: each needs its own",
            hint="check that both are complete and of the same split",
        )
    if not len(wanted):
        raise UsageError(f"there are no {answers} to score", hint="give at least one")


def by_sentence(hypotheses: Sequence[str], references: References) -> list[list[str]]:
    """A list of references for each answer, at least one."""
    check_counts(references, hypotheses, "answers", "references")
    lists = [[each] if isinstance(each, str) else list(each) for each in references]
    empty = next((n for n, each in enumerate(lists, start=1) if not each), None)
    if empty is not None:
        raise UsageError(f"answer {empty} has no reference", hint="give at least one")
    return lists


def as_streams(lists: Sequence[Sequence[str]]) -> list[list[Any]]:
    """First references of all sentences, then second ones, ...: the format of sacrebleu.

    None fills in where a sentence has fewer, which sacrebleu allows and its types do not.

    >>> as_streams([["a", "b"], ["c"]])
    [['a', 'c'], ['b', None]]
    """
    most = max(len(each) for each in lists)
    return [[each[k] if k < len(each) else None for each in lists] for k in range(most)]


def plain_words(text: str) -> list[str]:
    """Lower-cased words without punctuation, for metrics that compare words.

    >>> plain_words("A dog's tail, wagging.")
    ['a', 'dog', 's', 'tail', 'wagging']
    """
    return re.findall(r"\w+", text.lower())


# BLEU, by sacrebleu.


class Bleu(NamedTuple):
    """From 0 to 100; report ``signature``, the settings, with the number."""

    score: float
    precisions: tuple[float, ...]
    """Precisions of 1-grams, 2-grams, ..."""
    brevity_penalty: float
    signature: str


def bleu(
    hypotheses: Sequence[str],
    references: References,
    *,
    is_lowercase: bool = False,
    max_order: int = 4,
    tokenize: str = "13a",
) -> Bleu:
    """N-gram precision of the answers against their references, over the whole corpus.

    Papineni et al., 2002; counted as WMT does (Post, 2018, https://arxiv.org/abs/1804.08771). The
    texts must be detokenized: sacrebleu tokenizes them itself.

    Args:
        max_order: 1 to 4 for BLEU-1 to BLEU-4.

    >>> round(bleu(["the cat sat on the mat"], ["the cat sat on a mat"]).score, 2)
    53.73
    """
    streams = as_streams(by_sentence(hypotheses, references))
    metric = BLEU(lowercase=is_lowercase, max_ngram_order=max_order, tokenize=tokenize)
    result = metric.corpus_score(list(hypotheses), streams)
    return Bleu(result.score, tuple(result.precisions), result.bp, str(metric.get_signature()))


def sentence_bleu(hypothesis: str, references: str | Sequence[str], *, max_order: int = 4) -> Bleu:
    """BLEU of one sentence, with smoothing.

    As sacrebleu recommends for sentences: exponential smoothing, and no n-gram order beyond the
    sentence's length.
    """
    (held,) = by_sentence([hypothesis], [references])
    metric = BLEU(effective_order=True, max_ngram_order=max_order)
    result = metric.sentence_score(hypothesis, held)
    return Bleu(result.score, tuple(result.precisions), result.bp, str(metric.get_signature()))


# Character n-gram F-score, by sacrebleu.


class Chrf(NamedTuple):
    """From 0 to 100; ``signature`` has the settings."""

    score: float
    signature: str


def chrf(hypotheses: Sequence[str], references: References, *, word_order: int = 0) -> Chrf:
    """F2 of the character n-grams (1 to 6) of answers and references.

    Popović, 2015; with ``word_order=2`` it is chrF++ (Popović, 2017).

    >>> chrf(["a cat"], ["a cat"]).score
    100.0
    """
    streams = as_streams(by_sentence(hypotheses, references))
    metric = CHRF(word_order=word_order)
    result = metric.corpus_score(list(hypotheses), streams)
    return Chrf(result.score, str(metric.get_signature()))


# Translation edit rate, by sacrebleu.


class Ter(NamedTuple):
    """Edits per 100 words of the reference: lower is better; it may exceed 100."""

    score: float
    n_edits: float
    """Words inserted, deleted or replaced, and blocks of words moved."""
    n_words: float
    """Words of the references; the mean where there are several."""
    signature: str


def ter(hypotheses: Sequence[str], references: References) -> Ter:
    """How many edits turn the answers into their references.

    Snover et al., 2006. Lower-cased words, Tercom's default.

    >>> ter(["the cat sat"], ["the cat sat down"]).score
    25.0
    """
    streams = as_streams(by_sentence(hypotheses, references))
    metric = TER()
    result = metric.corpus_score(list(hypotheses), streams)
    return Ter(
        result.score, float(result.num_edits), result.ref_length, str(metric.get_signature())
    )


# METEOR without synonyms: exact words and stems, recall over precision, a penalty for order.

# Beam size of the alignment search, as in METEOR 1.5.
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
    """Words matched exactly or by stem, recall weighted nine times, a penalty for word order.

    Banerjee and Lavie, 2005 (https://aclanthology.org/W05-0909): with P and R the precision and
    recall of matched words, m matches in c runs, ``10 P R / (R + 9 P) * (1 - 0.5 (c / m)^3)``, the
    best over a sentence's references, then the mean over sentences. Own code: NLTK's needs
    WordNet's data and takes the first match instead of the one with the fewest runs. The paper's
    last stage, WordNet synonyms, is left out, so numbers are a little below those of the Java
    program. Stems are Snowball's (for English, Porter's second).

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

    The paper counts crossings where we count runs, which is what the penalty uses. Partial
    alignments are kept in a beam; each is (matches, exact, -runs, used reference words as bits,
    position of the last match), so that larger is better.
    """
    nowhere = -2  # neither a position nor the one before the first
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


# Neighbours on each side that are compared where a word has several possible matches.
_CONTEXT = 2


class Lepor(NamedTuple):
    """From 0 to 1: the product of the three factors; each factor is a mean over sentences."""

    score: float
    length_penalty: float
    position_penalty: float
    harmonic: float
    """Harmonic mean of precision and recall."""


def lepor(
    hypotheses: Sequence[str],
    references: References,
    *,
    recall: float = 9.0,
    precision: float = 1.0,
) -> Lepor:
    """Length, matched words and word order in one number.

    Han, Wong and Chao, 2012 (https://aclanthology.org/C12-2044), equations 1 to 9: ``LEPOR = LP x
    NPosPenal x Harmonic(recall R, precision P)`` for each sentence, then the mean (their
    "LEPOR-A"). Their tokenization depends on the language; here words are lower-cased and without
    punctuation. Of several references the best counts. No maintained library has it.

    Args:
        recall: weight of recall against precision; 9 to 1 is what the paper found for most pairs.

    >>> lepor(["a cat sat"], ["a cat sat"]).score
    1.0
    """
    lists = by_sentence(hypotheses, references)
    scores = [
        max(
            sentence_lepor(plain_words(hypothesis), plain_words(each), recall, precision)
            for each in held
        )
        for hypothesis, held in zip(hypotheses, lists, strict=True)
    ]
    return Lepor(*(sum(column) / len(scores) for column in zip(*scores, strict=True)))


def sentence_lepor(
    hypothesis: Sequence[str], reference: Sequence[str], recall: float, precision: float
) -> Lepor:
    """LEPOR of one sentence in words."""
    if not hypothesis or not reference:
        return Lepor(*([float(hypothesis == reference)] * 4))
    n, m = len(hypothesis), len(reference)
    length_penalty = math.exp(1 - max(n, m) / min(n, m))
    aligned = align_nearest(hypothesis, reference)
    # Positions count from 1, so that the last word of each sentence is at 1.
    differences = sum(abs((i + 1) / n - (j + 1) / m) for i, j in aligned.items())
    position_penalty = math.exp(-differences / n)
    harmonic = 0.0
    if aligned:
        p, r = len(aligned) / n, len(aligned) / m
        harmonic = (recall + precision) / (recall / r + precision / p)
    score = length_penalty * position_penalty * harmonic
    return Lepor(score, length_penalty, position_penalty, harmonic)


def align_nearest(hypothesis: Sequence[str], reference: Sequence[str]) -> dict[int, int]:
    """Match each word of the answer to a word of the reference, each used once.

    The paper's figure 1: of several equal words take the one with the most equal neighbours, and of
    those the one nearest in relative position.

    >>> align_nearest(["a", "b", "a"], ["a", "a", "b"])
    {0: 1, 1: 2, 2: 0}
    """
    free = set(range(len(reference)))
    found: dict[int, int] = {}
    for i, word in enumerate(hypothesis):
        same = [j for j in sorted(free) if reference[j] == word]
        if same:
            found[i] = min(same, key=lambda j: _unlike(hypothesis, reference, i, j))
            free.remove(found[i])
    return found


def _unlike(
    hypothesis: Sequence[str], reference: Sequence[str], i: int, j: int
) -> tuple[int, float]:
    near = [k for k in range(-_CONTEXT, _CONTEXT + 1) if k]
    equal = sum(
        0 <= i + k < len(hypothesis)
        and 0 <= j + k < len(reference)
        and hypothesis[i + k] == reference[j + k]
        for k in near
    )
    return -equal, abs(i / len(hypothesis) - j / len(reference))
