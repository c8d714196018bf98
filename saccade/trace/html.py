"""Traces as a page: a matrix to point at, and its heads or hops beside it to choose from.

The page needs nothing from elsewhere. All numbers are in it as JSON; the script only draws them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

import torch

from saccade.trace.page_parts import SCRIPT, STYLE
from saccade.trace.trace import Trace

DIGITS = 4  # of a weight; a shade of blue has fewer


def trace_html(traces: Trace | Sequence[Trace], *, title: str = "") -> str:
    """One HTML file that works offline, with one trace or several below each other.

    >>> import torch
    >>> trace = Trace(kind="attention", steps=("a",), memory=("<b>",), weights=torch.ones(1, 1))
    >>> page = trace_html(trace, title="one look")
    >>> "<title>one look</title>" in page, "<b>" in page
    (True, False)
    """
    several = [traces] if isinstance(traces, Trace) else list(traces)
    title = title or next((trace.title for trace in several if trace.title), "trace")
    data = [_data(trace) for trace in several]
    # What is in a script is not unescaped: a label that says </script> must not end it.
    packed = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{escape(title)}</h1><main></main>"
        "<noscript>The matrices are drawn by a script, which is off here.</noscript>"
        f'<script type="application/json" id="traces">{packed}</script>'
        f"<script>{SCRIPT}</script></body></html>\n"
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
    }
