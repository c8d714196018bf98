"""Describing films: the four systems of the paper, and the equations of the one with both."""

import pytest
import torch

from saccade.zoo.decoding.greedy import greedy
from saccade.zoo.models.video_describer import MotionEncoder, VideoDescriber
from saccade.zoo.tasks.digit_captions import Sentences

FILMS, FRAMES, SIZE = 2, 5, 24
SAID = torch.tensor([[4, 9, 2, 0], [7, 5, 10, 2]])


def describer(**more):
    torch.manual_seed(0)
    sizes = {"n_words": 11, "d_frame": 7, "d_embed": 3, "d_hidden": 13, "size": SIZE}
    return VideoDescriber(**(sizes | more)).eval()


@pytest.fixture
def frames():
    torch.manual_seed(1)
    return torch.rand(FILMS, FRAMES, 1, SIZE, SIZE)


def by_hand(model, values, words):
    """Attend, update, predict; one film, one frame and one word at a time."""
    mean = values.mean(0)
    h, c = torch.tanh(model.first_hidden(mean)), torch.tanh(model.first_cell(mean))
    of_input, of_state, bias, _ = model.cell.kernel.all_weights[0]
    found, alphas = [], []
    for word in words:
        score = model.attention.score
        q = score.query_proj(h)
        e = torch.cat([score.score_proj(torch.tanh(q + score.key_proj(v))) for v in values])
        alpha = e.exp() / e.exp().sum()
        phi = sum(w * v for w, v in zip(alpha, values, strict=True))
        y = model.embed.weight[word]
        i, f, g, o = (of_input @ y + of_state @ h + bias + model.context_gates(phi)).split(13)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        deep = torch.tanh(model.before_output(torch.cat([h, phi, y])))
        found.append(model.output(deep).log_softmax(-1))
        alphas.append(alpha)
    return torch.stack(found), torch.stack(alphas)


def test_both_together_agree_with_the_papers_equations(frames):
    model, sentences = describer(), Sentences.of(SAID)
    found, values = model(frames, sentences), model.watch(frames)
    log_probs, at = found.logits.log_softmax(-1), 0
    for row in range(FILMS):
        n = int(sentences.target_mask[row].sum())
        expected, weights = by_hand(model, values[row], sentences.target_in[row, :n].tolist())
        torch.testing.assert_close(log_probs[at : at + n], expected)
        torch.testing.assert_close(found.weights[row, :n], weights)
        at += n


def test_decoding_is_the_same_walk_as_training(frames):
    model = describer()
    model.output.bias.data[:2] = -99.0  # it never says padding or a beginning
    values = model.watch(frames)
    for row, each in enumerate(greedy(model, frames, max_length=5)):
        said = Sentences.of(torch.tensor([[*each.ids, 2][:5]]))
        log_probs, weights = by_hand(model, values[row], said.target_in[0].tolist())
        expected = log_probs.gather(1, said.target_out[0][:, None]).sum()
        assert each.log_prob == pytest.approx(expected.item(), abs=1e-4)
        torch.testing.assert_close(each.weights, weights)


def test_a_frame_by_itself_says_nothing_of_its_neighbours_and_its_motion_does(frames):
    changed = frames.clone()
    changed[:, 2] = torch.rand(FILMS, 1, SIZE, SIZE)
    plain = describer(has_motion=False)
    differs = (plain.watch(frames) != plain.watch(changed)).any(-1)
    assert differs.any(0).tolist() == [False, False, True, False, False]
    torch.manual_seed(0)
    motion = MotionEncoder(channels=(3,)).eval()  # a kernel of three frames
    differs = (motion(frames) != motion(changed)).any(-1)
    assert differs.any(0).tolist() == [False, True, True, True, False]


def test_without_attention_every_frame_counts_alike_and_every_weight_learns(frames):
    model = describer(looking="mean").train()
    out = model(frames, Sentences.of(SAID))
    torch.testing.assert_close(out.weights, torch.full((FILMS, 4, FRAMES), 1 / FRAMES))
    out.logits.sum().backward()
    assert all(w.grad is not None for w in model.parameters() if w.requires_grad)


def test_features_that_were_made_before_are_described_as_they_are():
    model = describer(size=None, d_frame=6)
    features = torch.randn(FILMS, FRAMES, 6)
    values = model.watch(features)
    torch.testing.assert_close(values[:, :, :6], features)
    assert values.shape == (FILMS, FRAMES, 7)  # and the time of each frame
    two_each = torch.tensor([[4, 2], [5, 2], [6, 2], [7, 2]])
    assert model(features, Sentences.of(two_each)).weights.shape == (4, 2, FRAMES)
