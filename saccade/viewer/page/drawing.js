// Two drawing surfaces with the same methods: a canvas, which is fast, and SVG, for files and interactive parts.

import { makeSvg } from "./dom.js";
import { themeColour } from "./colours.js";

const MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";
const SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

export function canvasSurface(context) {
  return {
    rect(x, y, width, height, fill, { radius = 0, stroke = null, line = 1, opacity = 1 } = {}) {
      if (!radius && !stroke && opacity === 1) {
        context.fillStyle = fill; // the most common case, and the fastest
        context.fillRect(x, y, width, height);
        return;
      }
      context.beginPath();
      if (radius) context.roundRect(x, y, width, height, radius);
      else context.rect(x, y, width, height);
      context.globalAlpha = opacity;
      if (fill) {
        context.fillStyle = fill;
        context.fill();
      }
      if (stroke) {
        context.strokeStyle = stroke;
        context.lineWidth = line;
        context.stroke();
      }
      context.globalAlpha = 1;
    },
    text(
      words,
      x,
      y,
      {
        size = 12,
        fill = themeColour("ink"),
        anchor = "start",
        turn = 0,
        mono = false,
        weight = 400,
      } = {},
    ) {
      context.save();
      context.translate(x, y);
      if (turn) context.rotate((turn * Math.PI) / 180);
      context.font = `${weight} ${size}px ${mono ? MONO : SANS}`;
      context.textAlign = anchor === "middle" ? "center" : anchor;
      context.fillStyle = fill;
      context.fillText(words, 0, 0);
      context.restore();
    },
    path(d, { stroke = null, fill = null, width = 1, opacity = 1, dash = "" } = {}) {
      const path = new Path2D(d);
      context.save();
      context.globalAlpha = opacity;
      context.setLineDash(dash ? dash.split(" ").map(Number) : []);
      if (fill) {
        context.fillStyle = fill;
        context.fill(path);
      }
      if (stroke) {
        context.strokeStyle = stroke;
        context.lineWidth = width;
        context.stroke(path);
      }
      context.restore();
    },
  };
}

// Returns the nodes, so that the caller can add labels, roles and listeners.
export function svgSurface(root) {
  const add = (node) => {
    root.append(node);
    return node;
  };
  return {
    rect(x, y, width, height, fill, { radius = 0, stroke = null, line = 1, opacity = 1 } = {}) {
      return add(
        makeSvg("rect", {
          x: round(x),
          y: round(y),
          width: round(width),
          height: round(height),
          fill: fill ?? "none",
          rx: radius || null,
          opacity: opacity === 1 ? null : round(opacity),
          stroke,
          "stroke-width": stroke ? line : null,
        }),
      );
    },
    text(
      words,
      x,
      y,
      {
        size = 12,
        fill = themeColour("ink"),
        anchor = "start",
        turn = 0,
        mono = false,
        weight = 400,
      } = {},
    ) {
      return add(
        makeSvg(
          "text",
          {
            x: round(x),
            y: round(y),
            "font-size": size,
            "font-family": mono ? MONO : SANS,
            "font-weight": weight,
            fill,
            "text-anchor": anchor,
            "xml:space": "preserve",
            transform: turn ? `rotate(${turn} ${round(x)} ${round(y)})` : null,
          },
          words,
        ),
      );
    },
    path(d, { stroke = null, fill = null, width = 1, opacity = 1, dash = "" } = {}) {
      return add(
        makeSvg("path", {
          d,
          stroke,
          fill: fill ?? "none",
          "stroke-width": width,
          opacity: opacity === 1 ? null : opacity,
          "stroke-dasharray": dash || null,
        }),
      );
    },
  };
}

function round(value) {
  return Math.round(value * 100) / 100;
}

export function svgRoot(width, height, label) {
  return makeSvg("svg", {
    xmlns: "http://www.w3.org/2000/svg",
    viewBox: `0 0 ${round(width)} ${round(height)}`,
    width: round(width),
    height: round(height),
    role: "img",
    "aria-label": label,
  });
}

const measuring = { context: null, widths: new Map() };

export function textWidth(words, { size = 12, mono = false, weight = 400 } = {}) {
  const font = `${weight} ${size}px ${mono ? MONO : SANS}`,
    key = `${font} ${words}`,
    { widths } = measuring;
  if (!widths.has(key)) {
    measuring.context ??= document.createElement("canvas").getContext("2d");
    measuring.context.font = font;
    if (widths.size > 20000) widths.clear();
    widths.set(key, measuring.context.measureText(words).width);
  }
  return widths.get(key);
}

// The text, cut to the width.
export function truncated(words, room, options = {}) {
  if (textWidth(words, options) <= room) return words;
  const letters = [...words];
  while (letters.length && textWidth(`${letters.join("")}…`, options) > room) letters.pop();
  return letters.length ? `${letters.join("")}…` : "";
}
