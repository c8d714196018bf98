// Weights as a matrix: a row for each step, a column for each position of the memory.

import { make } from "./dom.js";
import { scaleOf } from "./colours.js";
import { fixed } from "./number_format.js";
import { textWidth } from "./drawing.js";
import { grid } from "./grid.js";

const MONO = { size: 11, mono: true };

// weights[row][column]; rows may be shorter than columns (causal attention).
export function matrix({
  weights,
  rows,
  columns,
  title,
  onpoint,
  onchoose,
  cursor = null,
  cell = null,
  height = 520,
}) {
  const side =
    cell ??
    [
      [16, 34],
      [28, 28],
      [48, 22],
      [160, 12],
    ].find(([most]) => Math.max(rows.length, columns.length) <= most)?.[1] ??
    5;
  const widest = (labels) =>
    Math.min(
      150,
      Math.max(...labels.slice(0, 400).map((label) => textWidth(label, MONO)), 16) + 22,
    );
  const isSmall = columns.length > 160;
  const labelOf = (row, column) =>
    `${rows[row]} reads ${columns[column]}: ${fixed(weights[row][column] ?? 0, 3)}`;
  const frame = grid({
    rows: rows.length,
    columns: columns.length,
    least: side,
    most: side,
    cellHeight: side,
    turned: true,
    title,
    cursor,
    left: widest(rows),
    top: isSmall ? 60 : widest(columns),
    cell: (row, column) =>
      weights[row][column] === undefined ? null : { value: weights[row][column], text: "" },
    scale: scaleOf([0, 1], { low: 0, high: 1, root: true }),
    rowLabel: (row) => rows[row],
    columnLabel: (column) => columns[column],
    label: labelOf,
    onpoint,
    onchoose,
    tip: (row, column) =>
      weights[row][column] === undefined
        ? [make("p", {}, "after the row: masked")]
        : [
            make(
              "p",
              {},
              make("span", { class: "token" }, rows[row]),
              " reads ",
              make("span", { class: "token" }, columns[column]),
            ),
            make("p", { class: "number" }, fixed(weights[row][column], 4)),
          ],
  });
  frame.style.maxHeight = `${height}px`;
  return make("div", { class: "picture matrix" }, frame);
}
