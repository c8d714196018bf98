// Lines over a shared axis, each named at its end, told apart by hue, lightness and dash.

import { make } from "./dom.js";
import { ink, lineColour, lineDash } from "./colours.js";
import { svgPen, svgRoot, textWidth } from "./pens.js";
import { showTip, hideTip } from "./tip.js";

const TOP = 14,
  BOTTOM = 30,
  LEFT = 52;

// series: {name, points: [[x, y], ...]}; y: {ticks, text, place(value) -> 0 (bottom) to 1 (top)}.
export function lineChart({ series, x, y, title, height = 220, mark = null, wanted = null }) {
  const frame = make("div", { class: "chart picture" });
  const right = Math.min(
    160,
    Math.max(48, ...series.map(({ name }) => textWidth(name, { size: 12 }))) + 16,
  );
  function draw() {
    const width = Math.max(280, frame.clientWidth || 640),
      svg = svgRoot(width, height, title),
      pen = svgPen(svg);
    const across = (value) => LEFT + x.place(value) * (width - LEFT - right),
      up = (value) => TOP + (1 - y.place(value)) * (height - TOP - BOTTOM);
    axesOf(pen, { x, y, across, up, width: width - right, height });
    if (mark !== null)
      pen.path(`M ${across(mark)} ${TOP} V ${height - BOTTOM}`, {
        stroke: ink("accent"),
        width: 1.5,
        dash: "3 3",
      });
    if (wanted) {
      pen.path(`M ${LEFT} ${up(wanted.value)} H ${width - right}`, {
        stroke: ink("soft"),
        dash: "5 4",
      });
      pen.text(wanted.name, LEFT + 6, up(wanted.value) - 5, { size: 11, fill: ink("soft") });
    }
    const ends = [];
    series.forEach((line, at) =>
      drawLine(pen, line, { at, across, up, ends, right: width - right }),
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
          Math.abs(x.place(point[0]) - share) < Math.abs(x.place(best[0]) - share) ? point : best,
        ),
      }));
    if (share < 0 || share > 1.02 || !rows.length) {
      hideTip();
      return;
    }
    showTip(
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
  frame.addEventListener("pointerleave", hideTip);
  new ResizeObserver(draw).observe(frame);
  return frame;
}

function axesOf(pen, { x, y, across, up, width, height }) {
  const soft = { size: 11, fill: ink("soft") };
  for (const value of y.ticks) {
    pen.path(`M ${LEFT} ${up(value)} H ${width}`, { stroke: ink("line") });
    pen.text(y.text(value), LEFT - 8, up(value) + 4, { ...soft, anchor: "end" });
  }
  for (const value of x.ticks)
    pen.text(x.text(value), across(value), height - 10, { ...soft, anchor: "middle" });
  if (y.name) pen.text(y.name, 4, 10, soft);
  if (x.name) pen.text(x.name, width, height - 10, { ...soft, anchor: "end" });
}

function drawLine(pen, { name, points }, { at, across, up, ends, right }) {
  const known = points.filter(([, value]) => Number.isFinite(value));
  if (!known.length) return;
  const d = known
    .map(([px, py], i) => `${i ? "L" : "M"} ${across(px).toFixed(1)} ${up(py).toFixed(1)}`)
    .join(" ");
  pen.path(d, { stroke: lineColour(at), width: 2, dash: lineDash(at) });
  if (known.length === 1)
    pen.rect(across(known[0][0]) - 3, up(known[0][1]) - 3, 6, 6, lineColour(at), { radius: 3 });
  let place = up(known[known.length - 1][1]) + 4;
  while (ends.some((taken) => Math.abs(taken - place) < 13)) place += 13; // names that would lie on each other
  ends.push(place);
  pen.text(name, right + 8, place, { size: 12, fill: lineColour(at), weight: 600 });
}

// A straight axis from low to high.
export function straight(low, high, values, text, name = "") {
  return { ticks: values, text, name, place: (value) => (value - low) / (high - low || 1) };
}
