// Lines over a shared axis, each named at its end; they differ in hue, lightness and dash.

import { make } from "./dom.js";
import { themeColour, lineColour, lineDash } from "./colours.js";
import { svgSurface, svgRoot, textWidth } from "./drawing.js";
import { showTooltip, hideTooltip } from "./tooltip.js";

const TOP = 14,
  BOTTOM = 30,
  LEFT = 52;

// series: {name, points: [[x, y], ...]}; y: {ticks, text, scale(value) -> 0 (bottom) to 1 (top)}.
export function lineChart({ series, x, y, title, height = 220, mark = null, reference = null }) {
  const frame = make("div", { class: "chart picture" });
  const right = Math.min(
    160,
    Math.max(48, ...series.map(({ name }) => textWidth(name, { size: 12 }))) + 16,
  );
  function draw() {
    const width = Math.max(280, frame.clientWidth || 640),
      svg = svgRoot(width, height, title),
      surface = svgSurface(svg);
    const across = (value) => LEFT + x.scale(value) * (width - LEFT - right),
      up = (value) => TOP + (1 - y.scale(value)) * (height - TOP - BOTTOM);
    axesOf(surface, { x, y, across, up, width: width - right, height });
    if (mark !== null)
      surface.path(`M ${across(mark)} ${TOP} V ${height - BOTTOM}`, {
        stroke: themeColour("accent"),
        width: 1.5,
        dash: "3 3",
      });
    if (reference) {
      surface.path(`M ${LEFT} ${up(reference.value)} H ${width - right}`, {
        stroke: themeColour("soft"),
        dash: "5 4",
      });
      surface.text(reference.name, LEFT + 6, up(reference.value) - 5, {
        size: 11,
        fill: themeColour("soft"),
      });
    }
    const ends = [];
    series.forEach((line, at) =>
      drawLine(surface, line, { at, across, up, ends, right: width - right }),
    );
    frame.replaceChildren(svg);
  }
  frame.addEventListener("pointermove", (event) => {
    const box = frame.getBoundingClientRect(),
      share = (event.clientX - box.left - LEFT) / (box.width - LEFT - right);
    const rows = series
      .filter((line) => line.points.length)
      .map((line) => ({
        name: line.name,
        near: line.points.reduce((best, point) =>
          Math.abs(x.scale(point[0]) - share) < Math.abs(x.scale(best[0]) - share) ? point : best,
        ),
      }));
    if (share < 0 || share > 1.02 || !rows.length) {
      hideTooltip();
      return;
    }
    showTooltip(
      rows.map(({ name, near }) =>
        make(
          "p",
          {},
          `${name} `,
          make("b", { class: "number" }, y.text(near[1])),
          ` at ${x.text(near[0])}`,
        ),
      ),
      event.clientX,
      event.clientY,
    );
  });
  frame.addEventListener("pointerleave", hideTooltip);
  new ResizeObserver(draw).observe(frame);
  return frame;
}

function axesOf(surface, { x, y, across, up, width, height }) {
  const soft = { size: 11, fill: themeColour("soft") };
  for (const value of y.ticks) {
    surface.path(`M ${LEFT} ${up(value)} H ${width}`, { stroke: themeColour("line") });
    surface.text(y.text(value), LEFT - 8, up(value) + 4, { ...soft, anchor: "end" });
  }
  for (const value of x.ticks)
    surface.text(x.text(value), across(value), height - 10, { ...soft, anchor: "middle" });
  if (y.name) surface.text(y.name, 4, 10, soft);
  if (x.name) surface.text(x.name, width, height - 10, { ...soft, anchor: "end" });
}

function drawLine(surface, { name, points }, { at, across, up, ends, right }) {
  const known = points.filter(([, value]) => Number.isFinite(value));
  if (!known.length) return;
  const d = known
    .map(([px, py], i) => `${i ? "L" : "M"} ${across(px).toFixed(1)} ${up(py).toFixed(1)}`)
    .join(" ");
  surface.path(d, { stroke: lineColour(at), width: 2, dash: lineDash(at) });
  if (known.length === 1)
    surface.rect(across(known[0][0]) - 3, up(known[0][1]) - 3, 6, 6, lineColour(at), { radius: 3 });
  let labelY = up(known[known.length - 1][1]) + 4;
  while (ends.some((taken) => Math.abs(taken - labelY) < 13)) labelY += 13; // names must not overlap
  ends.push(labelY);
  surface.text(name, right + 8, labelY, { size: 12, fill: lineColour(at), weight: 600 });
}

// A linear axis from low to high.
export function linearAxis(low, high, values, text, name = "") {
  return { ticks: values, text, name, scale: (value) => (value - low) / (high - low || 1) };
}
