"""Metrics of sequences: edits, exact matches, perplexity, brackets, where attention lies.

And BLEU by sentence length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from saccade.errors import UsageError
from saccade.zoo.metrics.translation_metrics import References, bleu, by_sentence, check_counts

# Edit distance: word, character and digit error rates.


class EditRate(NamedTuple):
    """Edits per symbol of the references: lower is better; it may exceed 1."""

    rate: float
    n_edits: int
    n: int
    """Symbols of the references."""


def edit_rate(
    hypotheses: Sequence[Sequence[Hashable]], references: Sequence[Sequence[Hashable]]
) -> EditRate:
    """Deletions, insertions and substitutions per symbol of the references.

    With words as symbols it is the word error rate, with characters the character error rate, with
    digits the digit error rate. It is the sum of all edits over the sum of all reference symbols,
    so short answers do not count more than long ones.

    >>> edit_rate(["314", "27"], ["3144", "17"]).rate
    0.3333333333333333
    """
    check_counts(references, hypotheses, "answers", "references")
    n = sum(map(len, references))
    n_edits = sum(map(edit_distance, hypotheses, references))
    return EditRate(n_edits / n if n else float(n_edits > 0), n_edits, n)


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """The fewest insertions, deletions and substitutions that turn one into the other.

    Levenshtein, 1966; rapidfuzz computes it for 64 symbols at once (Hyyrö, 2003, "A bit-vector
    algorithm for computing Levenshtein and Damerau edit distances"). All symbols must have one
    type: it treats ``"a"`` and its code 97 as equal.

    >>> edit_distance("kitten", "sitting")
    3
    """
    return Levenshtein.distance(first, second)


# Accuracy of whole answers, of characters, and of single predictions.


class Accuracy(NamedTuple):
    """From 0 to 1, with its counts."""

    rate: float
    n_right: int
    n: int


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Accuracy:
    """The share of answers that equal the reference exactly.

    >>> exact_match(["12184", "25"], ["12184", "25011"]).rate
    0.5
    """
    check_counts(references, hypotheses, "answers", "references")
    pairs = zip(hypotheses, references, strict=True)
    n_right = sum(answer == right for answer, right in pairs)
    return Accuracy(n_right / len(references), n_right, len(references))


def character_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> Accuracy:
    """The share of reference characters that are at the same position in the answer.

    For answers that a model generated; characters beyond the reference do not count.

    >>> character_accuracy(["12184", "25"], ["12194", "25011"]).rate
    0.6
    """
    check_counts(references, hypotheses, "answers", "references")
    pairs = list(zip(hypotheses, references, strict=True))
    # An answer may be shorter or longer than its reference.
    n_right = sum(a == b for pair in pairs for a, b in zip(*pair, strict=False))
    n = sum(map(len, references))
    return Accuracy(n_right / n if n else 0.0, n_right, n)


def token_accuracy(
    predicted: Int[Tensor, "batch pos"],
    targets: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
) -> Accuracy:
    """The share of correct predictions under teacher forcing.

    What Learning to Execute reports. It overstates quality, since a model never continues from its
    own mistakes. Report `exact_match`, too.
    """
    n_right, n = int(((predicted == targets) & mask).sum()), int(mask.sum())
    return Accuracy(n_right / n if n else 0.0, n_right, n)


# Perplexity of a language model, with nats and bits.


class Perplexity(NamedTuple):
    """Per token (word or character), on average."""

    perplexity: float
    """exp(nats)."""
    nats: float
    bits: float
    n_tokens: int


def perplexity(nll: float, n_tokens: int) -> Perplexity:
    """From the summed negative log-likelihood (in nats) of all tokens.

    >>> perplexity(0.0, 10)
    Perplexity(perplexity=1.0, nats=0.0, bits=0.0, n_tokens=10)
    """
    if n_tokens < 1:
        raise UsageError("there is no token to score", hint="give some text")
    nats = nll / n_tokens
    # Beyond this a float overflows.
    value = math.exp(nats) if nats < 700 else math.inf
    return Perplexity(value, nats, nats / math.log(2), n_tokens)


# Labelled bracket precision, recall and F1, as EVALB counts them.


class Bracket(NamedTuple):
    """A constituent: its label and the words it spans, ``start`` to ``stop`` - 1."""

    label: str
    start: int
    stop: int


class BracketScore(NamedTuple):
    """From 0 to 100, over all sentences together."""

    f1: float
    precision: float
    recall: float
    complete: float
    """Sentences with exactly the gold brackets."""
    n_sentences: int


def score_brackets(
    gold: Sequence[Iterable[Bracket]], predicted: Sequence[Iterable[Bracket]]
) -> BracketScore:
    """Labelled precision, recall and F1 of the brackets of predicted trees.

    Black et al., 1991; counted as EVALB with Collins's parameters does: brackets as a multiset,
    summed over the corpus before division, ADVP and PRT as one label. The caller leaves out tags,
    the root and punctuation.

    >>> gold = [[Bracket("S", 0, 3), Bracket("NP", 0, 1), Bracket("VP", 1, 3)]]
    >>> guess = [[Bracket("S", 0, 3), Bracket("NP", 0, 2)]]
    >>> score = score_brackets(gold, guess)
    >>> score.precision, round(score.recall, 1), score.f1
    (50.0, 33.3, 40.0)
    """
    check_counts(gold, predicted, "predicted trees", "gold trees")
    matched = n_gold = n_predicted = complete = 0
    for right, guess in zip(gold, predicted, strict=True):
        wanted, found = Counter(map(_equated, right)), Counter(map(_equated, guess))
        matched += (wanted & found).total()
        n_gold += wanted.total()
        n_predicted += found.total()
        complete += wanted == found
    return BracketScore(
        f1=_share(2 * matched, n_gold + n_predicted),
        precision=_share(matched, n_predicted),
        recall=_share(matched, n_gold),
        complete=_share(complete, len(gold)),
        n_sentences=len(gold),
    )


def _equated(bracket: Bracket) -> Bracket:
    return bracket._replace(label="ADVP") if bracket.label == "PRT" else bracket


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0


# Attention on the right location, where that location is known.
#
# The idea is the pointing game of Zhang et al., 2016 (https://arxiv.org/abs/1608.00507, section
# 4.2): a hit is a map whose maximum is on the named object. Where we differ: we require more than
# half of the weight, since a maximum may have only 1 % of it.

HALF = 0.5
"""More weight than this on the right location is a hit."""


def weight_in_windows(
    weights: Float[Tensor, "look row column"], windows: Float[Tensor, "look 4"]
) -> Float[Tensor, " look"]:
    """The share of each map's weight in its window: on cells whose centre is inside.

    Args:
        windows: ``x, y, half_width, half_height`` between the image's edges -1 and 1.

    >>> corner = torch.tensor([[-0.5, -0.5, 0.5, 0.5]])
    >>> weight_in_windows(torch.tensor([[[0.25, 0.75], [0.0, 0.0]]]), corner)
    tensor([0.2500])
    """
    _, rows, columns = weights.shape
    is_inside = _between(rows, windows[:, 1], windows[:, 3])[:, :, None]
    is_inside = is_inside & _between(columns, windows[:, 0], windows[:, 2])[:, None]
    return (weights * is_inside).sum((1, 2))


def weight_in_spans(
    weights: Float[Tensor, "look place"], spans: Int[Tensor, "look 2"]
) -> Float[Tensor, " look"]:
    """The share of each row's weight in its span, from its start to before its end.

    >>> weight_in_spans(torch.tensor([[0.25, 0.5, 0.25]]), torch.tensor([[1, 3]]))
    tensor([0.7500])
    """
    place = torch.arange(weights.shape[1], device=weights.device)
    is_inside = (place >= spans[:, :1]) & (place < spans[:, 1:])
    return (weights * is_inside).sum(1)


def _between(
    n: int, centre: Float[Tensor, " look"], half: Float[Tensor, " look"]
) -> Bool[Tensor, "look n"]:
    """Which of n cells in a row have their centre in a window."""
    at = (2 * torch.arange(n, device=centre.device) + 1) / n - 1
    return (at - centre[:, None]).abs() <= half[:, None]


# Multi30k's German test sentences have 11 words on average. This makes four buckets of about 200
# and two smaller ones of long sentences (109 and 40), where systems differ most.
EDGES = (7, 9, 11, 14, 18)


class LengthBucket(NamedTuple):
    """Sentences of ``shortest`` to ``longest`` words."""

    shortest: int
    longest: int
    mean_length: float
    n_sentences: int
    bleu: float


def bleu_by_length(
    hypotheses: Sequence[str],
    references: References,
    lengths: Sequence[int],
    *,
    edges: Sequence[int] = EDGES,
) -> list[LengthBucket]:
    """BLEU of the sentences of each range of lengths, shortest first.

    Bahdanau et al., 2015, figure 2 (https://arxiv.org/abs/1409.0473). There a curve over all
    sentences up to a length is drawn; here each bucket has its own sentences only.

    Args:
        lengths: length of each source sentence.
        edges: the longest length of each bucket; one more bucket takes all that is longer.
    """
    lists = by_sentence(hypotheses, references)
    check_counts(lists, lengths, "lengths", "references")
    if list(edges) != sorted(set(edges)):
        raise UsageError(f"the edges {list(edges)} do not increase", hint="sort them")
    buckets = []
    for low, high in zip((0, *edges), (*edges, max(lengths)), strict=True):
        rows = [row for row, length in enumerate(lengths) if low < length <= high]
        if rows:
            held = [lengths[row] for row in rows]
            score = bleu([hypotheses[row] for row in rows], [lists[row] for row in rows]).score
            mean = sum(held) / len(held)
            buckets.append(LengthBucket(min(held), max(held), mean, len(held), score))
    return buckets
