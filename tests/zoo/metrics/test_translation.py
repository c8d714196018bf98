"""BLEU, TER and chrF against loops over n-grams, characters and edits."""

import math
import random

import pytest

from saccade.errors import UsageError
from saccade.zoo.metrics.translation_metrics import bleu, chrf, sentence_bleu, ter

WORDS = ["cat", "mat", "sat"]


def sentences(n, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(5, 11))) for _ in range(n)]


@pytest.fixture(scope="module")
def texts():
    """61 answers and their references, which have much in common by chance."""
    return sentences(61, 1), sentences(61, 2)


def matches(answer, reference, n):
    """Clipped matches and the number of n-grams, one by one."""
    grams = [tuple(answer[k : k + n]) for k in range(len(answer) - n + 1)]
    free = [tuple(reference[k : k + n]) for k in range(len(reference) - n + 1)]
    hits = 0
    for gram in grams:
        if gram in free:
            free.remove(gram)
            hits += 1
    return hits, len(grams)


def bleu_by_loops(answers, references, orders):
    logs = 0.0
    for n in range(1, orders + 1):
        counts = [
            matches(a.split(), r.split(), n) for a, r in zip(answers, references, strict=True)
        ]
        logs += math.log(sum(c[0] for c in counts) / sum(c[1] for c in counts)) / orders
    c, r = (sum(len(text.split()) for text in side) for side in (answers, references))
    return 100 * math.exp(logs) * min(1.0, math.exp(1 - r / c))


@pytest.mark.parametrize("orders", [1, 2, 3, 4])
def test_bleu_agrees_with_loops(texts, orders):
    result = bleu(*texts, max_order=orders)
    assert result.score == pytest.approx(bleu_by_loops(*texts, orders))
    assert len(result.precisions) == orders


def test_bleu_of_a_copy_is_100_and_the_signature_says_how():
    answers = sentences(5, 3)
    result = bleu(answers, answers)
    assert result.score == pytest.approx(100)
    assert "tok:13a" in result.signature and "case:mixed" in result.signature
    lower = bleu([text.upper() for text in answers], answers, is_lowercase=True)
    assert lower.score == pytest.approx(100) and "case:lc" in lower.signature


def test_a_short_answer_pays_for_its_brevity():
    result = bleu(["the cat sat on the mat"], ["the cat sat on the mat and slept there"])
    assert result.brevity_penalty == pytest.approx(math.exp(1 - 9 / 6))
    assert result.score == pytest.approx(100 * result.brevity_penalty)


def test_any_reference_may_be_met_and_sentences_may_have_different_numbers_of_them():
    answers = ["the cat sat on the mat", "a dog ran over there"]
    references = [["no such thing at all here", answers[0]], [answers[1]]]
    for metric in (bleu, chrf):
        assert metric(answers, references).score == pytest.approx(100)
    assert ter(answers, references).score == 0


def test_a_sentence_without_a_common_fourgram_is_not_zero():
    assert bleu(["the cat"], ["the cat"]).score == 0
    assert sentence_bleu("the cat", "the cat").score == pytest.approx(100)
    assert 0 < sentence_bleu("a cat sat there", ["the cat sat down"]).score < 100


def edits_by_loops(answer, reference):
    table = {(i, 0): i for i in range(len(answer) + 1)}
    table |= {(0, j): j for j in range(len(reference) + 1)}
    for i, a in enumerate(answer, start=1):
        for j, r in enumerate(reference, start=1):
            table[i, j] = min(
                table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a != r)
            )
    return table[len(answer), len(reference)]


def test_ter_counts_edits_where_nothing_can_be_moved():
    # Words come in the order of the alphabet, so that moving one never helps.
    draw = random.Random(7)
    texts = [" ".join(sorted(draw.sample("abcdefghijklm", 7))) for _ in range(22)]
    answers, references = texts[:11], texts[11:]
    edits = [edits_by_loops(a.split(), r.split()) for a, r in zip(answers, references, strict=True)]
    result = ter(answers, references)
    assert result.n_edits <= sum(edits)
    assert result.score == pytest.approx(100 * result.n_edits / result.n_words)
    assert result.n_words == 77


def test_moving_a_block_is_one_edit():
    assert ter(["d e f a b c"], ["a b c d e f"]).n_edits == 1
    assert ter(["a b x d"], ["a b c d"]).score == 25
    assert ter(["a b c d e"], ["a b c d e"]).score == 0


def chrf_by_loops(answers, references):
    precision, recall = [], []
    for n in range(1, 7):
        counts = []
        for pair in zip(answers, references, strict=True):
            a, r = (side.replace(" ", "") for side in pair)
            hits, mine = matches(a, r, n)
            counts.append((hits, mine, len(r) - n + 1))
        hits, mine, theirs = map(sum, zip(*counts, strict=True))
        precision.append(hits / mine)
        recall.append(hits / theirs)
    p, r = sum(precision) / 6, sum(recall) / 6
    return 100 * 5 * p * r / (4 * p + r)


def test_chrf_agrees_with_loops(texts):
    assert chrf(*texts).score == pytest.approx(chrf_by_loops(*texts))
    assert "nc:6|nw:0" in chrf(*texts).signature
    assert "nw:2" in chrf(*texts, word_order=2).signature


@pytest.mark.parametrize("metric", [bleu, ter, chrf])
def test_answers_without_references_are_refused(metric):
    with pytest.raises(UsageError, match="2 answers and 1 references: each needs its own"):
        metric(["a", "b"], ["a"])
    with pytest.raises(UsageError, match="there are no answers to score"):
        metric([], [])
    with pytest.raises(UsageError, match="answer 2 has no reference"):
        metric(["a", "b"], [["a"], []])
