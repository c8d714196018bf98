import math

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.metrics.sequence_metrics import perplexity


def test_a_model_that_guesses_evenly_is_as_undecided_as_there_are_words():
    logits, targets = torch.zeros(23, 7), torch.arange(23) % 7
    nll = torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
    found = perplexity(nll, 23)
    assert found.perplexity == pytest.approx(7)
    assert found.nats == pytest.approx(math.log(7))
    assert found.bits == pytest.approx(math.log2(7))


def test_it_is_the_inverse_of_the_geometric_mean_of_the_probabilities():
    probabilities = [0.5, 0.1, 0.02, 0.9, 0.3]
    found = perplexity(-sum(map(math.log, probabilities)), 5)
    assert found.perplexity == pytest.approx(math.prod(probabilities) ** (-1 / 5))


def test_a_hopeless_model_is_infinitely_undecided():
    assert perplexity(1e6, 10).perplexity == math.inf


def test_no_tokens_are_refused():
    with pytest.raises(UsageError, match="there is no token to score"):
        perplexity(0.0, 0)
