"""Show and Tell: the image is the first word, and is read once."""

import pytest
import torch
from torch import nn

from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.models.show_and_tell import ShowAndTell
from saccade.zoo.tasks.digit_captions import Sentences

SAID = torch.tensor([[4, 9, 2, 0], [7, 5, 10, 2]])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ShowAndTell(nn.Identity(), d_annotation=5, n_words=11, d_embed=7, d_hidden=13)


@pytest.fixture
def maps():
    torch.manual_seed(1)
    return torch.randn(2, 5, 2, 3)


def by_hand(model, maps, words):
    """The image, then word after word, through torch's own cell."""
    state = model.cell.start(1)
    state = model.cell.step(model.image_proj(maps.mean((1, 2)))[None], state).state
    found = []
    for word in words:
        output, state = model.cell.step(model.embed.weight[word][None], state)
        found.append(model.output(output)[0].log_softmax(-1))
    return torch.stack(found)


def test_logits_are_those_of_an_lstm_that_reads_the_image_and_then_the_words(model, maps):
    sentences = Sentences.of(SAID)
    found = model(maps, sentences).log_softmax(-1)
    expected = [
        by_hand(model, maps[row], sentences.target_in[row][sentences.target_mask[row]].tolist())
        for row in range(2)
    ]
    torch.testing.assert_close(found, torch.cat(expected))


def test_decoding_is_the_same_walk_as_training(model, maps):
    model.output.bias.data[:2] = -99.0  # it never says padding or a beginning
    for row, each in enumerate(greedy(model.eval(), maps, max_length=5)):
        said = Sentences.of(torch.tensor([[*each.ids, 2][:5]]))
        log_probs = by_hand(model, maps[row], said.target_in[0].tolist())
        expected = log_probs.gather(1, said.target_out[0][:, None]).sum()
        assert each.log_prob == pytest.approx(expected.item(), abs=1e-4)


def test_several_sentences_about_an_image_are_told_as_each_would_be_alone(model, maps):
    said = torch.tensor([[[4, 9, 2], [8, 2, 0]], [[7, 5, 2], [6, 6, 2]]])
    together = model(maps, Sentences.of(said.flatten(0, 1)))
    twice = [model(maps, Sentences.of(said[:, k])) for k in range(2)]
    first = torch.cat([twice[0][:3], twice[1][:2], twice[0][3:], twice[1][2:]])
    torch.testing.assert_close(together, first)
