"""The heat map is a picture of every head, written whole or not at all."""

import sys

import numpy as np
import pytest
import torch

from saccade.errors import MissingPackageError
from saccade.interp.lenses.evaluation import draw_heat_map, save_heat_map

pytest.importorskip("matplotlib")

LAYERS, HEADS = 5, 7


@pytest.fixture
def rows():
    generator = torch.Generator().manual_seed(0)
    return {layer: torch.rand(HEADS, generator=generator) for layer in range(3, 3 + LAYERS)}


def shown(rows):
    figure = draw_heat_map(rows, title="gain of every lens", label="gain, nats")
    return figure, *figure.axes


def test_every_cell_has_its_heads_figure_the_first_layer_lowest(rows):
    _, axes, _ = shown(rows)
    image = axes.images[0]
    expected = torch.stack([rows[layer] for layer in sorted(rows)])
    np.testing.assert_allclose(np.asarray(image.get_array()), expected)
    assert image.origin == "lower"


def test_title_axes_and_colours_say_what_they_are(rows):
    _, axes, bar = shown(rows)
    assert axes.get_title() == "gain of every lens"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["3", "4", "5", "6", "7"]
    assert bar.get_ylabel() == "gain, nats"


def test_figures_of_both_signs_meet_at_zero_in_the_middle_of_the_colours(rows):
    rows[3][2] = -0.4
    image = shown(rows)[1].images[0]
    low, high = image.get_clim()
    assert low == -high
    assert image.get_cmap().name == "PuOr"


def test_one_huge_figure_takes_the_colours_from_no_other(rows):
    rows[3][2] = 160.0
    figure = draw_heat_map(rows, title="", label="", most=1.5)
    image = figure.axes[0].images[0]
    assert image.get_clim()[1] == 1.5
    assert image.colorbar.extend == "max"  # an arrow says that it goes on


def test_layers_may_differ_in_their_heads(rows):
    rows[4] = rows[4][:2]
    grid = np.ma.getmaskarray(shown(rows)[1].images[0].get_array())
    assert grid.sum() == HEADS - 2


def test_the_file_is_a_png_whatever_its_name(rows, tmp_path):
    for name in ("map.png", "map.img"):
        save_heat_map(tmp_path / name, rows, title="a", label="b")
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG\r\n")


def test_a_failed_drawing_leaves_the_old_file(rows, tmp_path, monkeypatch):
    file = tmp_path / "map.png"
    file.write_bytes(b"old")

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(Exception, match="no space left on device"):
        save_heat_map(file, rows, title="a", label="b")
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_without_matplotlib_the_package_to_install_is_named(rows, monkeypatch):
    for name in ("matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match="'matplotlib'") as caught:
        draw_heat_map(rows, title="a", label="b")
    assert "saccade[plot]" in caught.value.hint
