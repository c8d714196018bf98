// Kinds of traces with a view of their own: hops over facts, and a lattice of frames and symbols.

import { columnNames, make, printable } from "./dom.js";
import { themeColour, scaleOf } from "./colours.js";
import { fixed, percent } from "./number_format.js";
import { grid } from "./grid.js";

// One row per fact, one column per hop: the weight of the fact. Hops are the views of a trace, or,
// in a trace without views, its steps.
export function hopsTable(trace, step) {
  const scale = scaleOf([], { low: 0, high: 1, root: true });
  const hasViews = Boolean(trace.views?.length),
    hops = hasViews ? trace.views : trace.steps;
  const rows = trace.memory.map((fact, position) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, printable(fact)),
      hops.map((_, hop) => {
        const row = hasViews ? trace.weights[hop][step] : trace.weights[hop],
          weight = row?.[position] ?? 0;
        return make(
          "td",
          {
            class: "number hop",
            style: { background: scale.colour(weight), color: scale.textColour(weight) },
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
      { class: "metrics hops" },
      columnNames(["fact", ...hops.map((name) => `#${printable(name)}`)]),
      make("tbody", {}, rows),
    ),
  );
}

// Frames from left to right, symbols from top to bottom; the most likely one of each frame is outlined.
export function lattice(trace, weights) {
  const best = trace.memory.map((_, frame) => {
    const column = weights.map((row) => row[frame]);
    return column.indexOf(Math.max(...column));
  });
  const labelOf = (row, column) =>
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
      mark: best[column] === row ? themeColour("accent") : null,
    }),
    scale: scaleOf([], { low: 0, high: 1, root: true }),
    rowLabel: (row) => printable(trace.steps[row]),
    columnLabel: (column) => printable(trace.memory[column]),
    label: labelOf,
    tip: (row, column) => [make("p", {}, labelOf(row, column))],
  });
  return make("div", { class: "picture" }, frame);
}
