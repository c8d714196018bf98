"""The picture of a trace: its labels, its weights, and what matplotlib might take for its own."""

import pytest
import torch

from saccade.errors import MissingPackageError
from saccade.trace.plot import draw_trace, trace_figure
from saccade.trace.trace import Trace


def trace(*, heads=0, steps=3, keys=5):
    torch.manual_seed(0)
    shape = (heads, steps, keys) if heads else (steps, keys)
    return Trace(
        kind="attention",
        steps=tuple(f"out{i}" for i in range(steps)),
        memory=tuple(f"in{i}" for i in range(keys)),
        weights=torch.randn(shape).softmax(-1),
        views=tuple(f"0.{head}" for head in range(heads)),
        title="a $title",
    )


def names(axes, which):
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


def test_steps_go_down_and_the_memory_goes_right():
    one = trace()
    (axes,) = trace_figure(one).axes
    assert names(axes, "x") == list(one.memory) and names(axes, "y") == list(one.steps)
    torch.testing.assert_close(torch.tensor(axes.images[0].get_array()), one.weights)
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {90}
    assert axes.images[0].get_clim() == (0, 1)  # the same shade means the same in every picture


def test_heads_are_side_by_side_each_with_its_name():
    many = trace(heads=7)
    figure = trace_figure(many)
    shown = [axes for axes in figure.axes if axes.images]
    assert [axes.get_xlabel() for axes in shown] == list(many.views)
    for axes, weights in zip(shown, many.weights, strict=True):
        torch.testing.assert_close(torch.tensor(axes.images[0].get_array()), weights)


@pytest.mark.parametrize(
    ("heads", "steps", "keys"), [(0, 1, 1), (0, 2, 211), (2, 307, 3), (9, 3, 2)]
)
def test_any_size_becomes_a_png(tmp_path, heads, steps, keys):
    draw_trace(trace(heads=heads, steps=steps, keys=keys), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    (axes, *_) = trace_figure(trace(heads=heads, steps=steps, keys=keys)).axes
    assert len(axes.get_xticks()) <= 60 and len(axes.get_yticks()) <= 60


def test_signs_that_mean_something_to_matplotlib_or_that_its_font_lacks_are_only_signs(tmp_path):
    odd = Trace(
        kind="x", steps=("$5", "$a_b$"), memory=("\\", "猫", "_x"), weights=torch.ones(2, 3)
    )
    draw_trace(odd, tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="drawing a trace needs the package 'matplotlib'"):
        trace_figure(trace())
