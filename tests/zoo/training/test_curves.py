"""The picture of a log."""

import pytest

from saccade.errors import MissingPackageError
from saccade.zoo.training.run_folder import draw_curves, save_curves

LINES = [
    {"step": 5, "loss": 2.0},
    {"step": 10, "loss": 1.0},
    {"step": 10, "validation": {"bleu": 3.0, "odd": None}},
    {"step": 15, "loss": 0.5},
]


def test_loss_and_score_are_drawn_over_the_steps(tmp_path):
    figure = draw_curves(LINES, score="bleu", title="of $5")
    loss, score = figure.axes
    assert loss.lines[0].get_xydata().tolist() == [[5, 2], [10, 1], [15, 0.5]]
    assert score.lines[0].get_xydata().tolist() == [[10, 3]]
    assert score.get_ylabel() == "validation: bleu"
    save_curves(tmp_path / "loss.png", LINES, score="bleu", title="of $5")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_panel_is_as_high_beside_another_as_alone():
    alone, both = (draw_curves(lines, score="bleu") for lines in (LINES[:1], LINES))
    assert len(alone.axes) == 1 and len(both.axes) == 2
    assert both.get_figwidth() == alone.get_figwidth()
    assert both.get_figheight() == 2 * alone.get_figheight()


@pytest.mark.parametrize("lines", [[], LINES[:1], LINES[2:3]])
def test_what_is_not_there_yet_is_left_out(lines, tmp_path):
    save_curves(tmp_path / "loss.png", lines, score="odd")
    assert (tmp_path / "loss.png").exists()


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match="needs the package 'matplotlib'"):
        draw_curves(LINES, score="bleu")
