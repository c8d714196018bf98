"""Which positions the polish learns from, and when."""

import pytest
import torch

from saccade.distributed import Processes
from saccade.interp.heads.capture import capture
from saccade.interp.lenses.batches import windows_of_step
from saccade.interp.lenses.polish import AHEAD, POSITION_STRIDE, Ahead

ROWS, SEED = 3, 5


def reads(model, corpus, n, *, first=1, processes=None):
    ahead = Ahead(model, corpus, processes or Processes(), rows=ROWS, seed=SEED)
    return [ahead.at(step) for step in range(first, first + n)]


@pytest.fixture(scope="module")
def text(stories, corpus, corpus_of):
    """Windows with no special token but the BOS at their start."""
    plain = stories.is_text(corpus.windows)[:, 1:].all(1)
    return corpus_of(corpus.windows[plain][:11])


def assert_same_rows(found, wanted):
    """The same rows in any order, up to rounding."""
    assert found.shape == wanted.shape
    apart = torch.cdist(found, wanted, compute_mode="donot_use_mm_for_euclid_dist")
    assert apart.amin(0).max() < 1e-3 and apart.amin(1).max() < 1e-3


def test_in_time_every_other_position_of_each_window_is_learnt_from_once(stories, text):
    # The windows of step 4 have a part in steps 1 to 4.
    found = reads(stories, text, 4)
    windows = windows_of_step(len(text.windows), 4, rows=ROWS, seed=SEED)
    captured = capture(stories, text.windows[windows])
    # The windows begin with BOS, which is no text.
    kept = range((text.windows.shape[1] - 1) // POSITION_STRIDE)
    wanted = []
    for row, window in enumerate(windows.tolist()):
        offset = (window + 3 * ROWS // len(text.windows)) % POSITION_STRIDE
        wanted.append(captured.final[row, 1 + offset :: POSITION_STRIDE][: len(kept)])
    sizes = [ROWS * len(kept[k::AHEAD]) for k in range(AHEAD)]
    parts = [read.final.split(sizes)[3 - k] for k, read in enumerate(found)]
    assert_same_rows(torch.cat(parts), torch.cat(wanted))


def test_a_step_learns_from_the_windows_of_several(stories, text):
    read = reads(stories, text, 1)[0]
    length = text.windows.shape[1]
    assert len(read.final) == ROWS * ((length - 1) // POSITION_STRIDE)
    layer = stories.layers[2].index
    assert read.z[layer].shape[0] == len(read.final)
    windows = torch.cat(
        [windows_of_step(len(text.windows), k, rows=ROWS, seed=SEED) for k in range(1, 1 + AHEAD)]
    )
    z = capture(stories, text.windows[windows]).z[layer]
    holders = [
        (read.z[layer][:, None] - each).flatten(2).abs().amax(2).amin(1) < 1e-4 for each in z
    ]
    # Each position is one of those windows', and every one of the windows is among them.
    assert torch.stack(holders).any(0).all() and torch.stack(holders).any(1).all()


def test_taken_up_later_a_step_is_the_same(stories, text):
    later = reads(stories, text, 1, first=6)[0]
    all_along = reads(stories, text, 6)[-1]
    torch.testing.assert_close(later.final, all_along.final, rtol=0, atol=0)
    for layer, z in later.z.items():
        torch.testing.assert_close(z, all_along.z[layer], rtol=0, atol=0)


def test_two_processes_share_what_one_would_learn_from(stories, text):
    alone = reads(stories, text, 2)[-1]
    shares = [
        reads(stories, text, 2, processes=Processes(rank=rank, world=2))[-1] for rank in range(2)
    ]
    together = torch.cat([each.final for each in shares])
    assert_same_rows(together, alone.final)
    idle = reads(stories, text, 1, processes=Processes(rank=3, world=4))[0]
    assert len(idle.final) == 0 and all(len(z) == 0 for z in idle.z.values())
