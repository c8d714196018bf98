"""The CTC recogniser: its steps, its padding, and that it learns."""

import torch

from saccade.zoo.decoding.ctc_search import ctc_greedy
from saccade.zoo.models.ctc_recogniser import CtcRecogniser, init_preserving_variance
from saccade.zoo.objectives.ctc_loss import ctc_loss


def make(**changed):
    torch.manual_seed(0)
    sizes = {"d_frame": 3, "n_symbols": 7, "d_hidden": 11, "strides": (2, 2)}
    return CtcRecogniser(**{**sizes, **changed})


def test_it_says_probabilities_at_a_quarter_of_the_frames():
    mask = torch.arange(13) < torch.tensor([[13], [9]])
    said = make()(torch.randn(2, 13, 3), mask)
    assert said.values.shape == (2, 4, 7) and said.mask.sum(1).tolist() == [4, 3]
    torch.testing.assert_close(said.values.exp().sum(-1), torch.ones(2, 4))


def test_what_stands_behind_the_end_changes_nothing():
    model = make(strides=(1, 3)).eval()
    frames = torch.randn(2, 17, 3)
    mask = torch.arange(17) < torch.tensor([[17], [8]])
    said = model(frames, mask)
    alone = model(frames[1:, :8], mask[1:, :8])
    torch.testing.assert_close(said.values[1, :3], alone.values[0])


def test_at_first_a_convolution_is_as_loud_as_what_it_reads():
    torch.manual_seed(0)
    convolution = torch.nn.Conv1d(53, 211, 5)
    init_preserving_variance(convolution)
    heard = torch.relu(convolution(torch.randn(2, 53, 97)))
    torch.testing.assert_close(heard.square().mean(), torch.tensor(1.0), atol=0.05, rtol=0)


def test_it_learns_where_nothing_tells_it_where():
    """Three kinds of bumps among noise, in any order and at any place."""
    torch.manual_seed(0)
    model = make(strides=(2,), d_hidden=24, dropout=0.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)

    def draw(n):
        text = torch.randint(4, 7, (n, 3))
        frames = 0.1 * torch.randn(n, 24, 3)
        at = torch.arange(3) * 8 + torch.randint(0, 5, (n, 3))
        rows = torch.arange(n)[:, None]
        for width in range(3):
            frames[rows, at + width, text - 4] += 1.0
        return frames, torch.ones(n, 24, dtype=torch.bool), text

    for _ in range(120):
        frames, mask, text = draw(32)
        said = model(frames, mask)
        optimiser.zero_grad()
        ctc_loss(*said, text, torch.ones_like(text, dtype=torch.bool)).loss.backward()
        optimiser.step()
    frames, mask, text = draw(50)
    found = [each.ids for each in ctc_greedy(*model.eval()(frames, mask))]
    assert sum(a == b for a, b in zip(found, text.tolist(), strict=True)) >= 45
