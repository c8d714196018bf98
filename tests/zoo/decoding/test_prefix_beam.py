"""Prefix beam search against the enumeration of all paths, and against a plain Python one."""

import itertools
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.decoding.ctc_search import ctc_greedy, prefix_beam
from saccade.zoo.decoding.stepper import Started, Stepped
from saccade.zoo.objectives.ctc_loss import BLANK
from saccade.zoo.tasks.vocabulary import BOS, EOS

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

N, FRAMES, SYMBOLS = 3, 5, 5  # BLANK, BOS, EOS and two letters: BOS and EOS are said by nobody
LENGTHS = (5, 3, 4)


class Trigrams:
    """A language model that knows the last two symbols; its state is the one before the last."""

    def __init__(self, n_symbols=SYMBOLS):
        torch.manual_seed(3)
        self.table = torch.randn(n_symbols, n_symbols, n_symbols).log_softmax(-1)

    def start(self, source):
        return Started(None, torch.full((source,), BOS))

    def step(self, tokens, memory, state):
        assert memory is None
        return Stepped(self.table[state, tokens], tokens)

    def score(self, text, weight, bonus):
        read = [BOS, BOS, *text, EOS]
        triples = zip(read, read[1:], read[2:], strict=False)
        return weight * sum(self.table[each].item() for each in triples) + bonus * len(text)


@pytest.fixture
def said():
    torch.manual_seed(1)
    logits = torch.randn(N, FRAMES, SYMBOLS)
    logits[:, :, [BOS, EOS]] = -torch.inf
    mask = torch.arange(FRAMES) < torch.tensor(LENGTHS)[:, None]
    return logits.log_softmax(-1), mask


def texts_of(log_probs):
    """The probability of every text: the sum over the paths that read as it."""
    found = defaultdict(float)
    for path in itertools.product([BLANK, 3, 4], repeat=len(log_probs)):
        text = tuple(s for s, _ in itertools.groupby(path) if s != BLANK)
        found[text] += sum(log_probs[frame, s] for frame, s in enumerate(path)).exp().item()
    return {text: torch.tensor(value).log().item() for text, value in found.items()}


def test_a_beam_that_holds_all_texts_finds_their_probabilities(said):
    log_probs, mask = said
    for row, found in enumerate(prefix_beam(log_probs, mask, size=100, n_best=10)):
        right = texts_of(log_probs[row, : LENGTHS[row]])
        best = sorted(right.items(), key=lambda pair: -pair[1])[: len(found)]
        assert [tuple(each.ids) for each in found] == [text for text, _ in best]
        assert [each.log_prob for each in found] == pytest.approx([v for _, v in best], abs=1e-5)


def test_with_a_language_model_texts_are_ranked_by_both(said):
    log_probs, mask = said
    model, weight, bonus = Trigrams(), 0.7, 0.4
    found = prefix_beam(
        log_probs, mask, size=100, language_model=model, weight=weight, bonus=bonus, n_best=5
    )
    for row, hypotheses in enumerate(found):
        heard = texts_of(log_probs[row, : LENGTHS[row]])
        ranks = {text: v + model.score(text, weight, bonus) for text, v in heard.items()}
        best = sorted(ranks, key=lambda text: -ranks[text])[:5]
        assert [tuple(each.ids) for each in hypotheses] == best
        assert hypotheses[0].score == pytest.approx(ranks[best[0]], abs=1e-4)
        assert hypotheses[0].log_prob == pytest.approx(heard[best[0]], abs=1e-5)


def test_a_bonus_alone_makes_texts_longer(said):
    plain, paid = prefix_beam(*said, size=20), prefix_beam(*said, size=20, bonus=5.0)
    lengths = [[len(found[0].ids) for found in each] for each in (plain, paid)]
    assert sum(lengths[1]) > sum(lengths[0])


def test_a_narrow_beam_keeps_what_the_plain_program_keeps():
    from memory_beam import peaked, python_prefix_beam

    log_probs = peaked(3, 23, 11).double()
    found = prefix_beam(log_probs, torch.ones(3, 23, dtype=torch.bool), size=5, n_best=5)
    for ours, rows in zip(found, log_probs.tolist(), strict=True):
        theirs = python_prefix_beam(rows, size=5)
        assert [tuple(each.ids) for each in ours] == [text for text, _ in theirs]
        assert [each.log_prob for each in ours] == pytest.approx([p for _, p in theirs])


def test_a_text_that_comes_back_after_its_continuation_was_kept_is_still_one_text():
    # A beam of two: [3] is dropped while [3, 4] stays, and is made anew; from then on the paths
    # from [3] to [3, 4] must be added to the one that is there.
    from memory_beam import python_prefix_beam

    torch.manual_seed(0)
    for _ in range(20):
        log_probs = (3 * torch.randn(2, 9, SYMBOLS)).double().log_softmax(-1)
        found = prefix_beam(log_probs, torch.ones(2, 9, dtype=torch.bool), size=2, n_best=2)
        for ours, rows in zip(found, log_probs.tolist(), strict=True):
            assert len({tuple(each.ids) for each in ours}) == 2
            theirs = python_prefix_beam(rows, size=2)
            assert [each.log_prob for each in ours] == pytest.approx([p for _, p in theirs])


def test_greedy_reads_the_likeliest_path(said):
    log_probs, mask = said
    for row, found in enumerate(ctc_greedy(log_probs, mask)):
        best = log_probs[row, : LENGTHS[row]].max(-1)
        path = best.indices.tolist()
        assert found.ids == [s for s, _ in itertools.groupby(path) if s != BLANK]
        assert found.log_prob == pytest.approx(best.values.sum().item())


def test_a_beam_never_finds_less_than_the_best_path(said):
    pairs = zip(prefix_beam(*said, size=8), ctc_greedy(*said), strict=True)
    assert all(found[0].log_prob >= path.log_prob for found, path in pairs)


def test_other_sentences_and_padding_change_nothing(said):
    log_probs, mask = said
    together = prefix_beam(log_probs, mask, size=4, language_model=Trigrams())
    for row in range(N):
        n = LENGTHS[row]
        alone = prefix_beam(
            log_probs[row : row + 1, :n], mask[row : row + 1, :n], size=4, language_model=Trigrams()
        )
        assert alone[0][0].ids == together[row][0].ids
        assert alone[0][0].score == pytest.approx(together[row][0].score, abs=1e-5)


def test_what_cannot_be_searched_is_refused(said):
    with pytest.raises(UsageError, match="expected a beam of 1 or more"):
        prefix_beam(*said, size=2, n_best=3)
    with pytest.raises(UsageError, match="has 5 symbols and the language model 7"):
        prefix_beam(*said, size=2, language_model=Trigrams(7))
