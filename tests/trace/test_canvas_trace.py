"""Traces of what is drawn rather than looked at: the image grows, and may have no windows."""

import pytest
import torch

from saccade.trace.plot_image import animate_image_trace, draw_image_trace
from saccade.trace.trace import ImageTrace

STEPS, SIZE = 3, 5


def canvas_trace(*, windows=0):
    grown = torch.arange(STEPS)[:, None, None].expand(STEPS, SIZE, SIZE) / STEPS
    return ImageTrace(
        kind="canvas",
        image=torch.ones(SIZE, SIZE),
        steps=("one", "two", "three"),
        outlines=torch.zeros(STEPS, windows, 4, 2),
        pictures={"canvas": grown},
    )


def test_a_canvas_at_a_step_is_what_had_been_drawn_by_then():
    trace = canvas_trace()
    torch.testing.assert_close(trace.image_at(1), torch.full((SIZE, SIZE), 1 / STEPS))
    assert not trace.has_path and canvas_trace(windows=2).has_path


def test_an_image_that_is_looked_at_stays_as_it_is():
    gaze = ImageTrace(
        kind="gaze",
        image=torch.ones(SIZE, SIZE),
        steps=("one",),
        outlines=torch.zeros(1, 1, 4, 2),
        pictures={"canvas": torch.zeros(1, SIZE, SIZE)},
    )
    torch.testing.assert_close(gaze.image_at(0), gaze.image)


@pytest.mark.parametrize("windows", [0, 2])
def test_it_is_drawn_still_and_moving(tmp_path, windows):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    draw_image_trace(canvas_trace(windows=windows), tmp_path / "canvas.png")
    animate_image_trace(canvas_trace(windows=windows), tmp_path / "canvas.gif")
    with (
        image.open(tmp_path / "canvas.png") as still,
        image.open(tmp_path / "canvas.gif") as moving,
    ):
        assert still.format == "PNG"
        assert moving.n_frames == STEPS
