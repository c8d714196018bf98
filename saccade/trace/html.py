"""Traces as a page: a matrix to point at, and its heads or hops beside it to choose from.

Weights over an image are a page, too: its sentence to point at, and the image below it. A trace
over a document is its text, shaded.

The page needs nothing from elsewhere. All numbers are in it as JSON; the script only draws them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

import torch

from saccade.trace.document_page import DOCUMENT_SCRIPT, DOCUMENT_STYLE
from saccade.trace.image_trace import ImageTrace
from saccade.trace.overlay_page import OVERLAY_SCRIPT, OVERLAY_STYLE, overlay_data
from saccade.trace.page_parts import SCRIPT, STYLE
from saccade.trace.trace import Trace

DIGITS = 4  # of a weight; a shade of blue has fewer


def trace_html(
    traces: Trace | ImageTrace | Sequence[Trace | ImageTrace], *, title: str = ""
) -> str:
    """One HTML file that works offline, with one trace or several below each other.

    A trace over an image must have heat: a path of windows is a picture, and no page.

    >>> import torch
    >>> trace = Trace(kind="attention", steps=("a",), memory=("<b>",), weights=torch.ones(1, 1))
    >>> page = trace_html(trace, title="one look")
    >>> "<title>one look</title>" in page, "<b>" in page
    (True, False)
    """
    several = [traces] if isinstance(traces, Trace | ImageTrace) else list(traces)
    title = title or next((trace.title for trace in several if trace.title), "trace")
    data = [_data(each) if isinstance(each, Trace) else overlay_data(each) for each in several]
    # What is in a script is not unescaped: a label that says </script> must not end it.
    packed = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{OVERLAY_STYLE}{DOCUMENT_STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1><main></main>"
        "<noscript>The matrices are drawn by a script, which is off here.</noscript>"
        f'<script type="application/json" id="traces">{packed}</script>'
        f"<script>{OVERLAY_SCRIPT}{DOCUMENT_SCRIPT}{SCRIPT}</script></body></html>\n"
    )


def _data(trace: Trace) -> dict[str, object]:
    views, weights = trace.views, trace.by_view
    if len(views) > 1:
        views = ("mean of all", *views)
        weights = torch.cat([weights.mean(0, keepdim=True), weights])
    rounded = [
        [[round(value, DIGITS) for value in row] for row in view] for view in weights.tolist()
    ]
    return {
        "kind": trace.kind,
        "title": trace.title,
        "steps": trace.steps,
        "memory": trace.memory,
        "views": views,
        "weights": rounded,
        "upright": trace.is_upright,
    }
