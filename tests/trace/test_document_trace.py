"""A trace over a document: its words as they stand, shaded by what was read."""

import pytest
import torch

from saccade.trace.plot import WIDE, document_weights, draw_trace, place_words, trace_figure
from saccade.trace.trace import Trace, load_trace, save_trace

WORDS = ("Anne", "said", ",", "Mr.", "Elliot", "(", "he", "laughed", ")", "$5", "gone", "!") * 23


@pytest.fixture
def trace():
    weights = torch.rand(3, len(WORDS), generator=torch.Generator().manual_seed(0))
    weights[:, 17] += 50
    return Trace(
        kind="document",
        steps=("who", "____", "?"),
        memory=WORDS,
        weights=weights / weights.sum(-1, keepdim=True),
        title="who ____ ? Anne 93%",
    )


def test_words_stand_in_order_within_the_width_and_never_over_each_other():
    placed = place_words(WORDS, wide=37)
    assert [each.word for each in placed] == list(range(len(WORDS)))
    taken = set()
    for word, line, column in placed:
        cells = {(line, column + at) for at in range(len(WORDS[word]))}
        assert not cells & taken and column + len(WORDS[word]) <= 37
        taken |= cells
    assert sorted(placed, key=lambda each: (each.line, each.column)) == placed


def test_a_mark_stands_close_to_its_word():
    placed = place_words(("so", ",", "then", "."))
    assert [each.column for each in placed] == [0, 2, 4, 8]


def test_the_picture_has_every_word_once_and_the_darkest_is_the_one_most_read(trace, tmp_path):
    figure = trace_figure(trace)
    (axes,) = figure.axes
    written = [text for text in axes.texts if text.get_bbox_patch() is not None]
    assert [text.get_text() for text in written] == list(WORDS)
    light = [sum(text.get_bbox_patch().get_facecolor()[:3]) for text in written]
    assert light.index(min(light)) == 17 == document_weights(trace).argmax()
    assert axes.get_xlim() == (0, WIDE)
    draw_trace(trace, tmp_path / "read.png")
    assert (tmp_path / "read.png").read_bytes().startswith(b"\x89PNG")


def test_words_fit_into_their_places(trace):
    figure = trace_figure(trace)
    (axes,) = figure.axes
    figure.canvas.draw()
    letter = axes.transData.transform((1, 0))[0] - axes.transData.transform((0, 0))[0]
    for text in axes.texts:
        assert text.get_window_extent().width <= letter * (len(text.get_text()) + 0.5)


def test_it_is_kept_and_found_again(trace, tmp_path):
    save_trace(tmp_path / "trace", trace)
    again = load_trace(tmp_path / "trace")
    assert again.kind == "document" and again.memory == WORDS
    torch.testing.assert_close(again.weights, trace.weights)
