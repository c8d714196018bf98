"""Two language models together: probabilities mixed by hand, states that go on."""

import pytest
import torch

from saccade.errors import UsageError
from saccade.zoo.models.language_model import MixedLanguageModel
from saccade.zoo.models.ngram import NgramLanguageModel
from saccade.zoo.models.rnn_language_model import RnnLanguageModel

D_VOCAB = 9


@pytest.fixture
def both():
    torch.manual_seed(0)
    text = torch.randint(0, D_VOCAB, (200,))
    counted = NgramLanguageModel.count(text, order=3, d_vocab=D_VOCAB)
    return RnnLanguageModel(d_vocab=D_VOCAB, d_embed=3, d_hidden=5), counted


def test_every_probability_is_the_sum_of_the_two_shares(both):
    tokens = torch.randint(0, D_VOCAB, (2, 11))
    found = MixedLanguageModel(*both, share=0.3)(tokens).logits.exp()
    network, counted = (model(tokens).logits.softmax(-1) for model in both)
    torch.testing.assert_close(found, 0.7 * network + 0.3 * counted)


def test_reading_in_pieces_is_reading_at_once_and_step_by_step(both):
    model, tokens = MixedLanguageModel(*both, share=0.5), torch.randint(0, D_VOCAB, (2, 11))
    whole = model(tokens).logits
    first = model(tokens[:, :4])
    rest = model(tokens[:, 4:], first.state)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), whole)
    state = model.begin(2)
    for place in range(11):
        step = model.step(tokens[:, place], None, state)
        torch.testing.assert_close(step.log_probs, whole[:, place])
        state = step.state


@pytest.mark.parametrize("share", [0.0, 1.0, -0.2, float("nan")])
def test_a_share_that_leaves_one_out_is_refused(both, share):
    with pytest.raises(UsageError, match="expected a share between 0 and 1"):
        MixedLanguageModel(*both, share=share)
