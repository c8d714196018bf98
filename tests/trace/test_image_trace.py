"""Traces over images: what they hold, that they come back from disk, and how they are drawn."""

import pytest
import torch
from PIL import Image
from torch.nn import functional

from saccade.errors import MissingPackageError
from saccade.trace.plot_image import animate_image_trace, draw_image_trace, image_trace_figure
from saccade.trace.trace import ImageTrace, affine_outlines, load_trace, save_trace, window_outlines

STEPS, WINDOWS, HEIGHT, WIDTH = 3, 2, 11, 13


@pytest.fixture
def gaze():
    torch.manual_seed(0)
    centres = torch.rand(STEPS, WINDOWS, 2) - 0.5
    return ImageTrace(
        kind="gaze",
        image=torch.rand(HEIGHT, WIDTH),
        steps=("3 20%", "$7$ 50%", "7 98%"),
        outlines=window_outlines(centres, torch.full((STEPS, WINDOWS, 2), 0.3)),
        pictures={"scale 1": torch.rand(STEPS, 5, 5), "scale 2": torch.rand(STEPS, 7, 5)},
        title="a $gaze",
        meta={"run": "x"},
    )


def test_it_comes_back_from_disk_as_it_was(gaze, tmp_path):
    save_trace(tmp_path / "trace", gaze)
    found = load_trace(tmp_path / "trace")
    assert isinstance(found, ImageTrace) and found.to_dict() == gaze.to_dict()
    bare = ImageTrace(
        kind="gaze", image=gaze.image, steps=("a",), outlines=gaze.outlines[:1].requires_grad_()
    )
    save_trace(tmp_path / "trace", bare)  # over another one
    assert load_trace(tmp_path / "trace").to_dict() == bare.to_dict()


def test_outlines_go_around_a_window_and_its_centre_is_in_the_middle(gaze):
    outline = window_outlines(torch.tensor([0.1, -0.2]), torch.tensor([0.3, 0.4]))
    expected = [[-0.2, -0.6], [0.4, -0.6], [0.4, 0.2], [-0.2, 0.2]]
    torch.testing.assert_close(outline, torch.tensor(expected))
    torch.testing.assert_close(gaze.centres, gaze.outlines[:, 0].mean(1))


def test_an_affine_outline_has_the_corners_of_torchs_grid():
    torch.manual_seed(0)
    theta = torch.randn(2, 2, 3)
    grid = functional.affine_grid(theta, [2, 1, 5, 7], align_corners=True)
    corners = torch.stack([grid[:, 0, 0], grid[:, 0, -1], grid[:, -1, -1], grid[:, -1, 0]], dim=1)
    torch.testing.assert_close(affine_outlines(theta), corners)
    upright = torch.tensor([[0.3, 0.0, 0.1], [0.0, 0.4, -0.2]])
    same = window_outlines(torch.tensor([0.1, -0.2]), torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(affine_outlines(upright), same)


def test_the_picture_has_the_image_every_window_and_every_patch(gaze):
    figure = image_trace_figure(gaze)
    look, *patches = figure.axes
    torch.testing.assert_close(torch.tensor(look.images[0].get_array()), gaze.image)
    assert tuple(look.images[0].get_extent()) == (-1, 1, 1, -1) and look.get_ylim() == (1, -1)
    assert len(look.patches) == STEPS * WINDOWS
    for found, outline in zip(look.patches, gaze.outlines.flatten(0, 1), strict=True):
        torch.testing.assert_close(torch.tensor(found.get_xy())[:4].float(), outline)
    shown = [torch.tensor(axes.images[0].get_array()) for axes in patches]
    expected = [*gaze.pictures["scale 1"], *gaze.pictures["scale 2"]]
    assert all(torch.equal(one, other) for one, other in zip(shown, expected, strict=True))
    assert [axes.get_xlabel() for axes in patches[STEPS:]] == list(gaze.steps)


def test_a_step_by_itself_shows_the_path_so_far_and_its_own_windows(gaze):
    look, *patches = image_trace_figure(gaze, only=1).axes
    assert len(look.patches) == WINDOWS and len(patches) == 2
    path = torch.tensor(look.lines[0].get_xydata()).float()
    torch.testing.assert_close(path, gaze.centres[:2])
    assert look.get_xlabel() == gaze.steps[1]


def test_the_gif_has_a_frame_a_step_and_the_png_is_one(gaze, tmp_path):
    draw_image_trace(gaze, tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    animate_image_trace(gaze, tmp_path / "x.gif")
    with Image.open(tmp_path / "x.gif") as moving:
        assert moving.n_frames == STEPS and moving.info["loop"] == 0
        moving.seek(STEPS - 1)
        assert moving.info["duration"] == 2000


def test_a_trace_without_pictures_is_drawn_too(gaze, tmp_path):
    bare = ImageTrace(kind="gaze", image=gaze.image, steps=("a",), outlines=gaze.outlines[:1])
    assert len(image_trace_figure(bare).axes) == 1
    animate_image_trace(bare, tmp_path / "x.gif")
    with Image.open(tmp_path / "x.gif") as still:
        assert getattr(still, "n_frames", 1) == 1


def test_labels_that_do_not_fit_the_steps_are_a_bug(gaze):
    with pytest.raises(AssertionError, match=r"2 steps have labels, but there are {'outlines': 3}"):
        ImageTrace(kind="gaze", image=gaze.image, steps=("a", "b"), outlines=gaze.outlines)


def test_without_its_packages_the_error_says_what_to_install(gaze, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="drawing a trace needs the package 'matplotlib'"):
        image_trace_figure(gaze)
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(MissingPackageError, match="a GIF needs the package 'pillow'"):
        animate_image_trace(gaze, tmp_path / "x.gif")
