import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.tasks.pairs import Pairs, encode_pairs, encode_sources
from saccade.zoo.tasks.tokenizers import WordTokenizer
from saccade.zoo.tasks.vocabulary import BOS, EOS, PAD, Ragged

SOURCES = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
TARGETS = [[20, 21], [22, 23, 24], [25]]


@pytest.fixture
def pairs():
    return Pairs.of(Ragged.of(SOURCES), Ragged.of(TARGETS))


@pytest.fixture
def many():
    """301 pairs of 1 to 23 ids, which say which pair they belong to."""
    generator = torch.Generator().manual_seed(3)
    sides = torch.randint(1, 24, (2, 301), generator=generator).tolist()
    return Pairs.of(*(Ragged.of([100 + k] * n for k, n in enumerate(side)) for side in sides))


def test_a_batch_has_the_symbols_where_they_belong(pairs):
    batch = pairs.batch(torch.tensor([1, 0]))
    assert batch.source.tolist() == [[8, EOS, PAD, PAD], [5, 6, 7, EOS]]
    assert batch.source_mask.tolist() == [[True, True, False, False], [True] * 4]
    assert batch.target_in.tolist() == [[BOS, 22, 23, 24], [BOS, 20, 21, PAD]]
    assert batch.target_out.tolist() == [[22, 23, 24, EOS], [20, 21, EOS, PAD]]
    assert batch.target_mask.tolist() == [[True] * 4, [True, True, True, False]]
    assert batch.rows.tolist() == [1, 0]
    assert batch.n_tokens == 7


def test_sources_are_reversed_before_they_are_padded():
    pairs = Pairs.of(Ragged.of(SOURCES), Ragged.of(TARGETS), is_reversed=True)
    batch = pairs.batch(torch.arange(3))
    for row, mask, source in zip(batch.source, batch.source_mask, SOURCES, strict=True):
        assert row[mask].tolist() == [*source[::-1], EOS]
    assert batch.target_out[2].tolist() == [25, EOS, PAD, PAD]


def test_every_pair_comes_once_an_epoch(many):
    for batches in (many.batches(tokens=97, seed=1, epoch=0), many.in_order(tokens=97)):
        rows = torch.cat([batch.rows for batch in batches])
        assert rows.sort().values.tolist() == list(range(301))


def test_source_and_target_of_a_pair_stay_together(many):
    for batch in many.batches(tokens=97, seed=1, epoch=0):
        assert (batch.source[:, 0] == batch.rows + 100).all()
        assert (batch.target_out[:, 0] == batch.rows + 100).all()


def test_no_batch_holds_more_tokens_than_allowed(many):
    for batch in many.batches(tokens=97, seed=1, epoch=0):
        assert max(batch.source.numel(), batch.target_in.numel()) <= 97


def test_a_pair_that_is_too_long_makes_a_batch_of_its_own(many):
    batches = list(many.batches(tokens=7, seed=1, epoch=0))
    assert all(len(batch.rows) == 1 for batch in batches if batch.source.shape[1] > 7)
    assert sum(len(batch.rows) for batch in batches) == 301


def test_the_order_depends_on_seed_and_epoch_alone(many):
    def order(seed, epoch):
        return [batch.rows.tolist() for batch in many.batches(tokens=97, seed=seed, epoch=epoch)]

    assert order(1, 5) == order(1, 5)
    assert order(1, 5) != order(1, 6)
    assert order(1, 5) != order(2, 5)


def test_sorting_saves_most_of_the_padding(many):
    batches = list(many.in_order(tokens=97))
    held = sum(int(b.source_mask.sum() + b.target_mask.sum()) for b in batches)
    cells = sum(b.source.numel() + b.target_in.numel() for b in batches)
    unsorted = 24 * 301 * 2
    # What is left is the shorter side of pairs of quite unequal sides.
    assert (cells - held) < (unsorted - held) / 2


def test_long_pairs_can_be_left_out(many):
    short = many.at_most(11)
    assert 0 < len(short) < 301
    assert short.source.lengths.max() == 11 + 1
    assert short.target.lengths.max() == 11 + 2


def test_sentences_are_encoded_with_one_tokenizer_or_two():
    german, english = WordTokenizer.build(["ein Hund"]), WordTokenizer.build(["a dog", "cats"])
    pairs = encode_pairs(["ein Hund"], ["cats"], tokenizer=german, target_tokenizer=english)
    batch = pairs.batch(torch.tensor([0]))
    assert german.decode(batch.source[0].tolist()) == "ein Hund"
    assert english.decode(batch.target_out[0].tolist()) == "cats"


def test_a_sentence_to_translate_looks_like_one_of_a_batch():
    tokenizer = WordTokenizer.build(["ein Hund", "zwei kleine Hunde"])
    texts = ["zwei kleine Hunde", "ein Hund"]
    for is_reversed in (False, True):
        pairs = encode_pairs(texts, texts, tokenizer=tokenizer, is_reversed=is_reversed)
        alone = encode_sources(texts, tokenizer, is_reversed=is_reversed)
        batch = pairs.batch(torch.arange(2))
        assert torch.equal(alone.ids, batch.source) and torch.equal(alone.mask, batch.source_mask)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([], "no sentence"),
        ([" "], "the sentence is empty"),
        (["a", ""], "sentence 2 of 2 is empty"),
    ],
)
def test_an_empty_sentence_is_refused(texts, words):
    with pytest.raises(UsageError, match=words):
        encode_sources(texts, WordTokenizer.build(["a"]))


def test_a_batch_of_no_tokens_is_refused(pairs):
    with pytest.raises(UsageError, match="a batch of 0 tokens holds nothing"):
        list(pairs.batches(tokens=0, seed=0, epoch=0))
