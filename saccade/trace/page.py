"""Traces as a page: a matrix to point at, and its heads or hops beside it to choose from.

Weights over an image are a page, too: its sentence to point at, and the image below it. A trace
over a document is its text, shaded.

The page needs nothing from elsewhere. All numbers are in it as JSON; the script only draws them.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Any

import torch

from saccade.trace.trace import ImageTrace, Trace

# How the page of a trace looks, and how it is drawn.

# One hue from pale to dark (dark mode: from dim to bright): lightness alone tells the value.
STYLE = """
:root{--ink:#1c2430;--soft:#5b6675;--paper:#fff;--lo:#eef3f9;--hi:#08336e;--here:#ffe08a;
--here-ink:#3b2d00;color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf2;--soft:#98a4b3;--paper:#12161c;--lo:#1a222e;
--hi:#ffd75e;--here:#ffd75e;--here-ink:#241c00}}
body{margin:0 auto;padding:20px;max-width:1180px;color:var(--ink);background:var(--paper);
font:15px/1.45 system-ui,sans-serif}
h1{font-size:19px;margin:0 0 14px}
h2{font-size:14px;font-weight:600;margin:22px 0 8px;color:var(--soft)}
.trace{display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start}
.scroll{overflow:auto;max-width:100%}
table{border-collapse:separate;border-spacing:1px;font-size:13px}
th{font-weight:400;white-space:pre;padding:1px 6px;border-radius:3px}
thead th{writing-mode:vertical-rl;transform:rotate(180deg);text-align:left;padding:6px 1px;
vertical-align:bottom}
tbody th{text-align:right}
td{width:22px;min-width:22px;height:22px;padding:0;border-radius:3px;
background:color-mix(in oklab,var(--hi) calc(var(--v)*100%),var(--lo))}
td:hover,td.on{outline:2px solid var(--soft)}
th.on{background:var(--here);color:var(--here-ink)}
tbody th{cursor:default}
.said{min-height:1.5em;margin:6px 0 0;color:var(--soft);font-variant-numeric:tabular-nums}
.said b{color:var(--ink)}
.views{display:flex;flex-wrap:wrap;gap:10px;max-width:520px}
.views button{border:2px solid transparent;border-radius:6px;background:none;color:var(--soft);
font:12px system-ui,sans-serif;padding:4px;cursor:pointer;text-align:center}
.views button[aria-pressed=true]{border-color:var(--here);color:var(--ink)}
.views button:focus-visible{outline:2px solid var(--ink)}
.views canvas{display:block;width:96px;height:96px;image-rendering:pixelated;border-radius:3px;
margin-bottom:3px}
"""

SCRIPT = """
"use strict";
const make = (name, text, kind) => {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  if (kind) node.className = kind;
  return node;
};
const shade = weight => Math.min(1, Math.max(0, weight)).toFixed(4);

function draw(trace) {
  const section = make("section"), said = make("p", "", "said"), table = make("table");
  section.append(make("h2", trace.title ? trace.kind + ": " + trace.title : trace.kind));
  const head = make("thead"), top = make("tr"), body = make("tbody");
  top.append(make("th", ""));
  const columns = trace.memory.map(label => make("th", label));
  const rows = trace.steps.map(label => make("th", label));
  top.append(...(trace.upright ? rows : columns));
  head.append(top);
  const cells = rows.map((name, step) => {
    name.tabIndex = 0;
    name.dataset.step = step;
    return trace.memory.map((_, at) => {
      const cell = make("td");
      cell.dataset.step = step;
      cell.dataset.at = at;
      return cell;
    });
  });
  (trace.upright ? columns : rows).forEach((name, place) => {
    const line = make("tr");
    line.append(name, ...(trace.upright ? cells.map(step => step[place]) : cells[place]));
    body.append(line);
  });
  table.append(head, body);

  let view = 0;
  function show(chosen) {
    view = chosen;
    cells.forEach((line, step) => line.forEach((cell, at) => {
      const weight = trace.weights[view][step][at];
      cell.style.setProperty("--v", shade(weight));
      cell.title = trace.steps[step] + " \\u2190 " + trace.memory[at] + "  " + weight.toFixed(3);
    }));
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === view));
    say();
  }
  function say(step, at) {
    rows.forEach((name, place) => name.classList.toggle("on", place === step));
    const weights = step === undefined ? [] : trace.weights[view][step];
    const most = weights.map((weight, place) => [weight, place]).sort((a, b) => b[0] - a[0])
      .slice(0, 4).filter(pair => pair[0] > 0);
    const marked = at === undefined ? most.slice(0, 1).map(pair => pair[1]) : [at];
    columns.forEach((name, place) => name.classList.toggle("on", marked.includes(place)));
    said.replaceChildren();
    if (step === undefined) {
      said.textContent = "Point at a row to see what it read.";
      return;
    }
    said.append(make("b", trace.steps[step]));
    if (at === undefined) {
      said.append(" reads " + most.map(
        pair => trace.memory[pair[1]] + " " + pair[0].toFixed(2)).join(", "));
    } else {
      said.append(" \\u2190 ", make("b", trace.memory[at]), " " + weights[at].toFixed(3));
    }
  }
  function pointed(event) {
    const data = event.target.dataset;
    if (data.step === undefined) return;
    say(+data.step, data.at === undefined ? undefined : +data.at);
  }
  table.addEventListener("mouseover", pointed);
  table.addEventListener("focusin", pointed);
  table.addEventListener("mouseleave", () => say());

  const buttons = trace.views.map((name, at) => {
    const button = make("button"), small = make("canvas");
    small.width = (trace.upright ? trace.steps : trace.memory).length;
    small.height = (trace.upright ? trace.memory : trace.steps).length;
    paint(small, trace.weights[at], trace.upright);
    button.append(small, name);
    button.addEventListener("click", () => show(at));
    return button;
  });
  const parts = make("div", undefined, "trace"), main = make("div"), scroll = make("div");
  scroll.className = "scroll";
  scroll.append(table);
  main.append(scroll, said);
  parts.append(main);
  if (buttons.length > 1) {
    const views = make("div", undefined, "views");
    views.append(...buttons);
    parts.append(views);
  }
  section.append(parts);
  document.querySelector("main").append(section);
  show(0);
}

function paint(canvas, weights, upright) {
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  pen.fillStyle = style.getPropertyValue("--lo");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = style.getPropertyValue("--hi");
  weights.forEach((line, step) => line.forEach((weight, at) => {
    pen.globalAlpha = +shade(weight);
    pen.fillRect(...(upright ? [step, at] : [at, step]), 1, 1);
  }));
}

JSON.parse(document.getElementById("traces").textContent).forEach(
  trace => trace.heat ? overlay(trace)
    : trace.kind === "document" ? drawDocument(trace) : draw(trace));
"""


# How the page of a trace over a document looks: its words, shaded by what a step read of them.

DOCUMENT_STYLE = """
.document{max-width:72ch;line-height:1.9}
.document span{border-radius:3px;padding:1px 2px;
background:color-mix(in oklab,var(--hi) calc(var(--v)*100%),transparent)}
.document span.dark{color:var(--paper)}
.asked{max-width:72ch;margin:0 0 10px;line-height:1.9}
.asked button{border:0;border-radius:3px;padding:1px 3px;background:none;color:var(--ink);
font:inherit;cursor:pointer}
.asked button[aria-pressed=true]{background:var(--here);color:var(--here-ink)}
.asked button:focus-visible{outline:2px solid var(--ink)}
"""

# `make` and `shade` are those of the page. A shade tells a weight beside the largest of its step.
DOCUMENT_SCRIPT = """
const closes = word => /^[.,;:!?)\\]']$/.test(word);

function drawDocument(trace) {
  const section = make("section"), text = make("p", undefined, "document");
  const asked = make("p", undefined, "asked"), said = make("p", "", "said");
  section.append(make("h2", trace.title || trace.kind));
  const words = trace.memory.map((word, at) => {
    const node = make("span", word);
    text.append(at && !closes(word) ? " " : "", node);
    return node;
  });
  const rows = trace.weights[0];
  const mean = trace.memory.map(
    (_, at) => rows.reduce((sum, row) => sum + row[at], 0) / rows.length);
  function show(weights, name) {
    const most = Math.max(...weights, 1e-9);
    words.forEach((node, at) => {
      node.style.setProperty("--v", shade(weights[at] / most));
      node.classList.toggle("dark", weights[at] / most > 0.6);
      node.title = weights[at].toFixed(3);
    });
    const best = weights.map((weight, at) => [weight, at]).sort((a, b) => b[0] - a[0]).slice(0, 4)
      .filter(pair => pair[0] > 0);
    said.replaceChildren(make("b", name), " reads " + best.map(
      pair => trace.memory[pair[1]] + " " + pair[0].toFixed(2)).join(", "));
  }
  const choices = rows.length > 1 ? [["all", mean]] : [];
  trace.steps.forEach((step, at) => choices.push([step, rows[at]]));
  const buttons = choices.map(([name, weights], at) => {
    const button = make("button", name);
    button.addEventListener("click", () => choose(at));
    asked.append(at ? " " : "", button);
    return button;
  });
  function choose(at) {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", place === at));
    show(choices[at][1], choices[at][0]);
  }
  section.append(asked, text, said);
  document.querySelector("main").append(section);
  choose(0);
}
"""


# An overlay on a page: the image, and its sentence to point at word by word.

DIGITS = 4  # of a weight; a shade has fewer


def overlay_data(trace: ImageTrace) -> dict[str, Any]:
    """What the script below draws: the pixels as bytes, and the weights of each word."""
    assert trace.heat is not None, "there is something to lay over"
    image = trace.image.detach().cpu().float().clamp(0, 1)
    if image.dim() == 2:  # ink is dark on paper
        image = (1 - image)[:, :, None].expand(-1, -1, 3)
    pixels = (255 * image).round().to(torch.uint8).contiguous().numpy().tobytes()
    heat = trace.heat.detach().cpu().float().tolist()
    return {
        "kind": trace.kind,
        "title": trace.title,
        "steps": trace.steps,
        "height": image.shape[0],
        "width": image.shape[1],
        "pixels": b64encode(pixels).decode("ascii"),
        "heat": [[[round(value, DIGITS) for value in row] for row in step] for step in heat],
    }


OVERLAY_STYLE = """
.over canvas{display:block;max-width:100%;image-rendering:pixelated;border-radius:3px}
.over .words{display:flex;flex-wrap:wrap;gap:4px;margin:0 0 10px}
.over .words button{border:0;border-radius:4px;padding:3px 8px;font:15px system-ui,sans-serif;
color:var(--ink);background:var(--lo);cursor:pointer}
.over .words button[aria-pressed=true]{background:var(--here);color:var(--here-ink)}
.over .words button:focus-visible{outline:2px solid var(--ink)}
"""

OVERLAY_SCRIPT = """
function overlay(trace) {
  const section = make("section", undefined, "over"), words = make("div", undefined, "words");
  section.append(make("h2", trace.title ? trace.kind + ": " + trace.title : trace.kind));
  const bytes = Uint8Array.from(atob(trace.pixels), sign => sign.charCodeAt(0));
  const image = new ImageData(trace.width, trace.height);
  for (let at = 0; at < trace.width * trace.height; at++) {
    image.data.set([bytes[3 * at], bytes[3 * at + 1], bytes[3 * at + 2], 255], 4 * at);
  }
  const plain = make("canvas"), shown = make("canvas");
  plain.width = trace.width;
  plain.height = trace.height;
  plain.getContext("2d").putImageData(image, 0, 0);
  const scale = Math.max(1, Math.min(Math.round(420 / Math.min(trace.width, trace.height)),
    Math.floor(1100 / trace.width)));
  shown.width = scale * trace.width;
  shown.height = scale * trace.height;
  const strongest = Math.max(1e-9, ...trace.heat.flat(2)), pen = shown.getContext("2d");
  function show(step) {
    pen.imageSmoothingEnabled = false;
    pen.globalAlpha = 1;
    pen.drawImage(plain, 0, 0, shown.width, shown.height);
    pen.fillStyle = "#d93300";
    trace.heat[step].forEach((line, row) => line.forEach((weight, column) => {
      pen.globalAlpha = 0.75 * weight / strongest;
      const wide = shown.width / line.length, high = shown.height / trace.heat[step].length;
      pen.fillRect(column * wide, row * high, wide, high);
    }));
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", at === step));
  }
  const buttons = trace.steps.map((word, step) => {
    const button = make("button", word);
    for (const event of ["mouseenter", "focus", "click"]) {
      button.addEventListener(event, () => show(step));
    }
    return button;
  });
  words.append(...buttons);
  section.append(words, shown);
  document.querySelector("main").append(section);
  show(0);
}
"""


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
