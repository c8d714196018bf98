// Traces that a plain matrix does not show well: hops over facts, and a lattice of frames and symbols.

import { columnNames, make, printable } from "./dom.js";
import { ink, scaleOf } from "./colours.js";
import { fixed, percent } from "./figures.js";
import { grid } from "./grid.js";

// One line a fact, one column a hop: how much each hop read it. Hops are the views of a trace, or,
// of a trace without views, its steps.
export function hopsTable(trace, step) {
  const scale = scaleOf([], { low: 0, high: 1, root: true });
  const hasViews = Boolean(trace.views?.length),
    hops = hasViews ? trace.views : trace.steps;
  const rows = trace.memory.map((fact, place) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, printable(fact)),
      hops.map((_, hop) => {
        const row = hasViews ? trace.weights[hop][step] : trace.weights[hop],
          weight = row?.[place] ?? 0;
        return make(
          "td",
          {
            class: "number hop",
            style: { background: scale.colour(weight), color: scale.inkOn(weight) },
          },
          weight > 0.005 ? percent(weight, 0) : "",
        );
      }),
    ),
  );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Hops" },
    make(
      "table",
      { class: "figures hops" },
      columnNames(["fact", ...hops.map((name) => `#${printable(name)}`)]),
      make("tbody", {}, rows),
    ),
  );
}

// Frames from left to right, symbols from top to bottom; the likeliest of each frame is outlined.
export function lattice(trace, weights) {
  const best = trace.memory.map((_, frame) => {
    const column = weights.map((row) => row[frame]);
    return column.indexOf(Math.max(...column));
  });
  const says = (row, column) =>
    `frame ${trace.memory[column]}, ${trace.steps[row]}: ${fixed(weights[row][column], 3)}`;
  const frame = grid({
    rows: trace.steps.length,
    columns: trace.memory.length,
    least: 14,
    most: 30,
    cellHeight: 22,
    left: 70,
    top: 30,
    title: "Lattice of frames and symbols",
    cell: (row, column) => ({
      value: weights[row][column],
      text: "",
      mark: best[column] === row ? ink("accent") : null,
    }),
    scale: scaleOf([], { low: 0, high: 1, root: true }),
    rowLabel: (row) => printable(trace.steps[row]),
    columnLabel: (column) => printable(trace.memory[column]),
    label: says,
    tip: (row, column) => [make("p", {}, says(row, column))],
  });
  return make("div", { class: "picture" }, frame);
}
