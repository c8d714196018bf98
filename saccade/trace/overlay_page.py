"""An overlay on a page: the image, and its sentence to point at word by word."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import torch

from saccade.trace.image_trace import ImageTrace

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
