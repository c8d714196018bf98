"""CTC against the enumeration of all paths, and against autograd."""

import itertools

import pytest
import torch

from saccade.zoo.objectives.ctc_loss import (
    BLANK,
    ctc_best_path,
    ctc_lattice,
    ctc_loss,
    frames_needed,
)

FRAMES, SYMBOLS = 5, 4
# Rows of unequal lengths: with a repeated symbol, with one, with none, and one that cannot be said.
TEXTS = ([2, 2], [3, 1, 3], [1], [], [1, 1, 1])
N_FRAMES = (5, 4, 3, 2, 4)


@pytest.fixture
def rows():
    torch.manual_seed(0)
    log_probs = torch.randn(len(TEXTS), FRAMES, SYMBOLS, dtype=torch.float64).log_softmax(-1)
    frame_mask = torch.arange(FRAMES) < torch.tensor(N_FRAMES)[:, None]
    text = torch.zeros(len(TEXTS), 3, dtype=torch.long)
    text_mask = torch.zeros(len(TEXTS), 3, dtype=torch.bool)
    for row, symbols in enumerate(TEXTS):
        text[row, : len(symbols)] = torch.tensor(symbols, dtype=torch.long)
        text_mask[row, : len(symbols)] = True
    return log_probs, frame_mask, text, text_mask


def read(path):
    """What a path reads as: repeated symbols made one, blanks left out."""
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != BLANK]


def paths_of(log_probs, text):
    """Every path that reads as a text, with its log-probability."""
    for path in itertools.product(range(SYMBOLS), repeat=len(log_probs)):
        if read(path) == text:
            yield path, sum(log_probs[frame, s] for frame, s in enumerate(path))


def likelihoods(log_probs):
    found = []
    for row, text in enumerate(TEXTS):
        each = [value for _, value in paths_of(log_probs[row, : N_FRAMES[row]], text)]
        found.append(torch.stack(each).logsumexp(0) if each else torch.tensor(-torch.inf).double())
    return torch.stack(found)


def test_the_likelihood_is_the_sum_over_all_paths_that_read_as_the_text(rows):
    by_paths = likelihoods(rows[0])
    torch.testing.assert_close(ctc_lattice(*rows).log_likelihood, by_paths)
    assert by_paths[-1] == -torch.inf  # three equal symbols need five frames


def test_the_loss_is_minus_the_likelihood_of_what_can_be_said(rows):
    found = ctc_loss(*rows)
    n = sum(map(len, TEXTS[:4]))
    torch.testing.assert_close(found.loss, -likelihoods(rows[0])[:4].sum() / n)
    assert (found.n_symbols, found.n_impossible) == (n, 1)


def test_an_impossible_text_gives_no_gradient(rows):
    log_probs = rows[0].clone().requires_grad_()
    ctc_loss(log_probs, *rows[1:]).loss.backward()
    assert log_probs.grad[-1].abs().sum() == 0 and log_probs.grad.isfinite().all()


def test_the_fewest_frames_are_those_of_the_shortest_path():
    for text in ([1, 1], [1, 2, 2], [3]):
        n = int(frames_needed(torch.tensor([text]), torch.ones(1, len(text), dtype=torch.bool)))
        flat = torch.zeros(n, SYMBOLS)
        assert list(paths_of(flat, text)) and not list(paths_of(flat[1:], text))


def test_occupancy_is_the_gradient_of_the_likelihood(rows):
    log_probs = rows[0].clone().requires_grad_()
    likelihoods(log_probs)[:4].sum().backward()
    lattice = ctc_lattice(*rows)
    by_symbol = torch.zeros_like(log_probs).scatter_add(
        2, lattice.states[:, None].expand(-1, FRAMES, -1), lattice.occupancy
    )
    torch.testing.assert_close(by_symbol[:4], log_probs.grad[:4])
    assert (lattice.occupancy[4] == 0).all()


def test_the_states_of_a_real_frame_sum_to_one_and_those_of_padding_to_nothing(rows):
    total = ctc_lattice(*rows).occupancy.sum(-1)[:4]
    torch.testing.assert_close(total, rows[1][:4].double())


def test_the_best_path_is_the_likeliest_of_all(rows):
    states = ctc_lattice(*rows).states
    paths = ctc_best_path(*rows)
    for row, text in enumerate(TEXTS[:4]):
        n = N_FRAMES[row]
        right, _ = max(paths_of(rows[0][row, :n], text), key=lambda pair: pair[1])
        assert states[row][paths[row, :n]].tolist() == list(right)
        assert (paths[row, n:] == -1).all()


def test_more_padding_changes_nothing(rows):
    log_probs, frame_mask, text, text_mask = rows
    longer = torch.nn.functional.pad(log_probs, (0, 0, 0, 3), value=7.0)
    wider = (
        torch.nn.functional.pad(frame_mask, (0, 3)),
        torch.nn.functional.pad(text, (0, 2), value=3),
        torch.nn.functional.pad(text_mask, (0, 2)),
    )
    ours, padded = ctc_lattice(*rows), ctc_lattice(longer, *wider)
    torch.testing.assert_close(padded.log_likelihood, ours.log_likelihood)
    torch.testing.assert_close(padded.occupancy[:, :FRAMES, :7], ours.occupancy)
    torch.testing.assert_close(ctc_best_path(longer, *wider)[:, :FRAMES], ctc_best_path(*rows))
