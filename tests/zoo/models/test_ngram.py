"""Interpolated Kneser-Ney, against counting with dictionaries one n-gram at a time."""

from collections import Counter, defaultdict

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.decoding.greedy import sample
from saccade.zoo.models.ngram import FALLBACK, NgramLanguageModel, discounts_of

D_VOCAB = 11
# Symbols of unequal frequency, and 10 in none of the text.
TEXT = (torch.rand(400, generator=torch.Generator().manual_seed(5)) ** 2 * 9).long().tolist()


class SlowKneserNey:
    """The equations, by dictionaries: counts, then one probability at a time."""

    def __init__(self, text, order, is_modified):
        self.order = order
        self.counts = []
        for length in range(1, order + 1):
            grams = [tuple(text[i : i + length]) for i in range(len(text) - length + 1)]
            if length == order:
                self.counts.append(Counter(grams))
                continue
            before = defaultdict(set)
            for i, gram in enumerate(grams):
                before[gram].add(text[i - 1] if i else "beginning")
            self.counts.append(Counter({gram: len(seen) for gram, seen in before.items()}))
        self.discounts = [self.estimate(counts, is_modified) for counts in self.counts]

    @staticmethod
    def estimate(counts, is_modified):
        n1, n2, n3, n4 = (sum(c == k for c in counts.values()) for k in (1, 2, 3, 4))
        if not is_modified:
            return [n1 / (n1 + 2 * n2) if n1 and n2 else FALLBACK[0]] * 3
        if not (n1 and n2 and n3 and n4):
            return FALLBACK
        y = n1 / (n1 + 2 * n2)
        found = [1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]
        return found if all(0 < d < k + 1 for k, d in enumerate(found)) else FALLBACK

    def prob(self, word, context):
        if context is None:
            return 1 / D_VOCAB
        context = tuple(context)[max(0, len(context) - self.order + 1) :]
        shorter = context[1:] if context else None
        counts, discounts = self.counts[len(context)], self.discounts[len(context)]
        following = {gram: c for gram, c in counts.items() if gram[:-1] == context}
        total = sum(following.values())
        if not total:
            return self.prob(word, shorter)
        taken = sum(discounts[min(c, 3) - 1] for c in following.values())
        count = following.get((*context, word), 0)
        own = count - discounts[min(count, 3) - 1] if count else 0
        return own / total + taken / total * self.prob(word, shorter)


@pytest.fixture(params=[(1, True), (2, False), (3, True), (4, False)], ids=str, scope="module")
def both(request):
    order, is_modified = request.param
    ours = NgramLanguageModel.count(
        torch.tensor(TEXT), order=order, d_vocab=D_VOCAB, is_modified=is_modified
    )
    return ours, SlowKneserNey(TEXT, order, is_modified)


def test_probabilities_are_those_of_the_slow_reference(both):
    ours, slow = both
    text = [*TEXT[:7], 9, 10, 0, 1, *TEXT[50:60], 10]  # with symbols never seen
    found = ours.log_probs_of(torch.tensor([text, text[::-1]])).exp()
    for row, words in zip(found, (text, text[::-1]), strict=True):
        wanted = [slow.prob(word, words[:place]) for place, word in enumerate(words)]
        torch.testing.assert_close(row, torch.tensor(wanted))


def test_a_whole_distribution_is_that_of_the_slow_reference(both):
    ours, slow = both
    texts = [TEXT[5:10], [9, 10, 0, 1, 10]]
    predicted = ours(torch.tensor(texts))
    for row, text in zip(predicted.logits.exp(), texts, strict=True):
        for place in range(len(text)):
            wanted = [slow.prob(word, text[: place + 1]) for word in range(D_VOCAB)]
            torch.testing.assert_close(row[place], torch.tensor(wanted))


def test_probabilities_of_all_symbols_sum_to_one(both):
    ours, _ = both
    probs = ours(torch.randint(D_VOCAB, (3, 17))).logits.exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(3, 17))
    assert (probs > 0).all()


def test_reading_in_pieces_is_reading_at_once(both):
    ours, _ = both
    tokens = torch.tensor([TEXT[:11], TEXT[20:31]])
    first = ours(tokens[:, :4])
    second = ours(tokens[:, 4:], first.state)
    whole = ours(tokens)
    torch.testing.assert_close(torch.cat([first.logits, second.logits], 1), whole.logits)
    torch.testing.assert_close(second.state, whole.state)


def test_a_step_goes_on_from_the_history_of_its_row():
    model = NgramLanguageModel.count(torch.tensor(TEXT), order=3, d_vocab=D_VOCAB)
    tokens = torch.tensor([TEXT[:5], TEXT[9:14]])
    state = model.start(2).state
    for column in tokens.unbind(1):
        log_probs, state = model.step(column, None, state)[:2]
    torch.testing.assert_close(log_probs, model(tokens).logits[:, -1])


def test_parts_are_shares_of_one_probability_and_a_longer_context_takes_over():
    model = NgramLanguageModel.count(torch.tensor([4, 5, 6, 7] * 50), order=3, d_vocab=8)
    parts = model.parts_of(torch.tensor([[4, 5, 6, 7, 4]]))[0]
    torch.testing.assert_close(
        parts.sum(-1), model.log_probs_of(torch.tensor([[4, 5, 6, 7, 4]]))[0].exp()
    )
    assert (parts[2:, 3] > 0.9).all()  # what two symbols before say is nearly certain
    assert parts[0, 2:].sum() == 0  # nothing stands before the first


def test_francisco_is_frequent_but_follows_only_san():
    # 4 = San, 5 = Francisco, 6 to 9 = words that stand anywhere; after 6 comes anything.
    generator = torch.Generator().manual_seed(0)
    text = []
    for _ in range(300):
        word = int(torch.randint(6, 10, (), generator=generator))
        text += [4, 5] if word == 6 else [word]
    model = NgramLanguageModel.count(torch.tensor(text), order=2, d_vocab=11)
    after_unknown = model(torch.tensor([[10]])).logits[0, 0].exp()
    assert text.count(5) > 50
    assert after_unknown[5] < after_unknown[7] / 2


def test_weights_go_into_an_empty_model_of_the_same_sizes():
    model = NgramLanguageModel.count(torch.tensor(TEXT), order=3, d_vocab=D_VOCAB)
    other = NgramLanguageModel(d_vocab=D_VOCAB, sizes=model.sizes)
    other.load_state_dict(model.state_dict())
    tokens = torch.tensor([TEXT[:13]])
    assert torch.equal(other.log_probs_of(tokens), model.log_probs_of(tokens))


def test_samples_have_the_frequencies_of_the_model():
    model = NgramLanguageModel.count(torch.tensor([4, 5, 4, 6] * 30 + [4]), order=2, d_vocab=7)
    generator = torch.Generator().manual_seed(0)
    drawn = sample(model, 1, max_length=25, n=40, generator=generator)[0]
    pairs = Counter(pair for one in drawn for pair in zip(one.ids, one.ids[1:], strict=False))
    from_4 = sum(n for (first, _), n in pairs.items() if first == 4)
    wanted = model(torch.tensor([[4]])).logits[0, 0].exp()
    assert pairs[4, 5] / from_4 == pytest.approx(wanted[5].item(), abs=0.09)


def test_discounts_of_too_few_counts_fall_back():
    assert discounts_of(torch.tensor([7, 7, 9]), is_modified=True) == FALLBACK
    assert discounts_of(torch.tensor([7, 7, 9]), is_modified=False) == (FALLBACK[0],) * 3


def test_a_text_too_short_for_the_order_is_refused():
    with pytest.raises(UsageError, match="a text of 3 symbols has no 5-grams"):
        NgramLanguageModel.count(torch.tensor([4, 5, 6]), order=5, d_vocab=7)


def test_more_context_helps_on_real_text(data_with):
    from saccade.zoo.tasks.books import read_tinyshakespeare
    from saccade.zoo.tasks.text import make_corpus

    splits = read_tinyshakespeare(data_with("tinyshakespeare"))
    splits = splits._replace(train=splits.train[:200_000])
    corpus = make_corpus(splits, unit="character")
    nats = [
        -NgramLanguageModel.count(corpus.train, order=order, d_vocab=len(corpus.vocabulary))
        .log_probs_of(corpus.test[None, :20_000])
        .mean()
        .item()
        for order in (1, 2, 3, 5)
    ]
    assert nats == sorted(nats, reverse=True)
    assert nats[-1] < 2.1
