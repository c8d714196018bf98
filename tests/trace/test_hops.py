"""Hops over sentences: the sentences are lines of text, one below the other."""

import torch

from saccade.trace.plot import trace_figure
from saccade.trace.trace import Trace

HOPS = Trace(
    kind="hops",
    steps=("hop 1", "hop 2"),
    memory=("mary went to the kitchen", "john moved to the garden", "john took the $milk"),
    weights=torch.tensor([[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]),
    title="where is mary? kitchen",
)


def test_sentences_go_down_and_hops_go_right():
    (axes,) = trace_figure(HOPS).axes
    down = [label.get_text() for label in axes.get_yticklabels()]
    across = [label.get_text() for label in axes.get_xticklabels()]
    assert down == list(HOPS.memory) and across == list(HOPS.steps)
    torch.testing.assert_close(torch.tensor(axes.images[0].get_array()), HOPS.weights.T)


def test_a_picture_of_hops_has_room_for_its_sentences():
    figure = trace_figure(HOPS)
    figure.canvas.draw()
    (axes,) = figure.axes
    left = min(label.get_window_extent().x0 for label in axes.get_yticklabels())
    assert left >= 0 and axes.get_window_extent().width > 20


def test_what_a_hop_reads_is_told_as_for_any_trace():
    assert [HOPS.most(step, top=1)[0].position for step in range(2)] == [2, 0]
