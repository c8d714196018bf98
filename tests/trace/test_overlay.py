"""Weights over an image: kept, and drawn word by word."""

import pytest
import torch
from PIL import Image

from saccade.trace.plot_image import animate_image_trace, draw_image_trace, image_trace_figure
from saccade.trace.trace import ImageTrace, load_trace, save_trace

STEPS = ("a", "$dog", "</script>")
HEIGHT, WIDTH = 6, 10


def overlay(*colours):
    torch.manual_seed(0)
    heat = torch.rand(3, 2, 5)
    return ImageTrace(
        kind="overlay",
        image=torch.rand(HEIGHT, WIDTH, *colours),
        steps=STEPS,
        outlines=torch.zeros(3, 0, 4, 2),
        heat=heat / heat.sum((1, 2), keepdim=True),
        title="a <dog>",
    )


@pytest.mark.parametrize("colours", [(), (3,)])
def test_an_overlay_that_was_kept_is_the_same_overlay(tmp_path, colours):
    trace = overlay(*colours)
    save_trace(tmp_path / "kept", trace)
    again = load_trace(tmp_path / "kept")
    assert isinstance(again, ImageTrace) and again.steps == STEPS
    assert torch.equal(again.heat, trace.heat) and torch.equal(again.image, trace.image)
    assert again.to_dict() == trace.to_dict()


@pytest.mark.parametrize("colours", [(), (3,)])
def test_the_picture_has_the_image_and_one_more_for_each_word(tmp_path, colours):
    trace = overlay(*colours)
    figure = image_trace_figure(trace)
    shown = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in shown] == ["", *STEPS]
    strongest = trace.heat.max()
    for axes, heat in zip(shown[1:], trace.heat, strict=True):
        below, above = axes.images
        assert below.get_array().shape == tuple(trace.image.shape)
        alpha = torch.from_numpy(above.get_array()[..., 3]).float()
        torch.testing.assert_close(alpha, 0.75 * heat / strongest)
    draw_image_trace(trace, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as drawn:
        assert drawn.width > 100


def test_it_moves_from_word_to_word(tmp_path):
    animate_image_trace(overlay(), tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as moving:
        assert moving.n_frames == 3


def test_a_film_strip_has_one_column_of_pictures():
    trace = ImageTrace(
        kind="film",
        image=torch.rand(10, 160),
        steps=STEPS,
        outlines=torch.zeros(3, 0, 4, 2),
        heat=torch.rand(3, 1, 16),
    )
    lefts = {round(axes.get_position().x0, 2) for axes in image_trace_figure(trace).axes}
    assert len(lefts) == 1


def test_heat_without_a_word_for_each_step_is_refused():
    with pytest.raises(AssertionError, match=r"1 steps have labels, .*'heat': 2"):
        ImageTrace(
            kind="overlay",
            image=torch.zeros(4, 4),
            steps=("a",),
            outlines=torch.zeros(2, 0, 4, 2),
            heat=torch.zeros(2, 2, 2),
        )
