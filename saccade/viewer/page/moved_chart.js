// The words that moved most: what happened beside what the lens said would.

import { columnNames, dotted, make, panel } from "./dom.js";
import { ink } from "./colours.js";
import { percent, signed } from "./figures.js";
import { fitted, svgPen, svgRoot } from "./pens.js";

const ROW = 30,
  FIGURE = 58,
  TOP = 26;

export function movedChart(found) {
  const hasLens = found.moved.some((word) => word.predicted !== null);
  const frame = make("div", { class: "picture" });
  const draw = () =>
    frame.replaceChildren(chart(found.moved, Math.max(300, frame.clientWidth || 640), hasLens));
  new ResizeObserver(draw).observe(frame);
  return panel(
    "Words that move most",
    make(
      "p",
      { class: "note" },
      "Change of the log-probability, in nats: the dark bar happened",
      hasLens
        ? `, the pale one is what the lens ${found.lens ?? ""} said would happen.`
        : "; no lens says anything about these changes.",
    ),
    frame,
    table(found.moved),
  );
}

function chart(words, width, hasLens) {
  const svg = svgRoot(width, TOP + ROW * words.length, "Change of log-probability by word"),
    pen = svgPen(svg);
  const most = Math.max(
    ...words.flatMap((word) => [Math.abs(word.actual), Math.abs(word.predicted ?? 0)]),
    1e-6,
  );
  const room = width < 460 ? 80 : 120, // for the words
    half = (width - room - 2 * FIGURE) / 2,
    zero = room + FIGURE + half,
    unit = half / most;
  pen.path(`M ${zero} ${TOP - 6} V ${TOP + ROW * words.length}`, { stroke: ink("line") });
  pen.text("less likely", zero - 8, 12, { size: 11, fill: ink("soft"), anchor: "end" });
  pen.text("likelier", zero + 8, 12, { size: 11, fill: ink("soft") });
  words.forEach((word, at) => {
    const y = TOP + at * ROW;
    pen.text(fitted(dotted(word.text), room - 10, { size: 13, mono: true }), room - 8, y + 16, {
      size: 13,
      mono: true,
      anchor: "end",
    });
    bar(pen, {
      zero,
      unit,
      value: word.actual,
      y: y + 3,
      height: hasLens ? 10 : 16,
      fill: ink(word.actual < 0 ? "drop" : "add"),
    });
    if (word.predicted !== null)
      bar(pen, { zero, unit, value: word.predicted, y: y + 15, height: 6, fill: ink("pale") });
    const left = word.actual < 0;
    pen.text(signed(word.actual), zero + word.actual * unit + (left ? -6 : 6), y + 13, {
      size: 11,
      fill: ink("soft"),
      anchor: left ? "end" : "start",
    });
  });
  return svg;
}

function bar(pen, { zero, unit, value, y, height, fill }) {
  pen.rect(
    value < 0 ? zero + value * unit : zero,
    y,
    Math.max(1, Math.abs(value) * unit),
    height,
    fill,
    { radius: 2 },
  );
}

function table(words) {
  const rows = words.map((word) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", class: "token" }, dotted(word.text)),
      make("td", { class: "number" }, percent(word.before)),
      make("td", { class: "number" }, percent(word.after)),
      make("td", { class: "number" }, signed(word.actual)),
      make("td", { class: "number" }, word.predicted === null ? "–" : signed(word.predicted)),
    ),
  );
  return make(
    "details",
    { class: "more" },
    make("summary", {}, "The same as a table"),
    make(
      "table",
      { class: "figures" },
      columnNames(["word", "#before", "#after", "#happened", "#foreseen"]),
      make("tbody", {}, rows),
    ),
  );
}
