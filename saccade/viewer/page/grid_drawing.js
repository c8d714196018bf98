// How a grid is drawn: its cells, its axes, and all of it as one picture.

import { ink } from "./colours.js";
import { fitted, svgPen, svgRoot } from "./pens.js";
import { labelStep } from "./figures.js";

const MOST = 4096; // pixels of an exported picture's side: more, and browsers give up

export function gridSizes(
  { columns, least = 22, most = 96, cellHeight = 24, left = 96, top = 24 },
  frame,
) {
  const room = frame.clientWidth - left - 1;
  return { cellWidth: Math.max(least, Math.min(most, room / columns)), cellHeight, left, top };
}

export function drawCells(pen, options, state, sight) {
  const { rows, columns, cell, scale } = options,
    { cellWidth, cellHeight, left, top, cursor, pointed } = state;
  const first = Math.floor(sight.y / cellHeight),
    last = Math.min(rows, Math.ceil((sight.y + sight.height - top) / cellHeight) + 1);
  const from = Math.floor(sight.x / cellWidth),
    to = Math.min(columns, Math.ceil((sight.x + sight.width - left) / cellWidth) + 1);
  const gap = cellWidth > 8 && cellHeight > 8 ? 1 : 0,
    text = { size: cellWidth < 44 ? 11 : 12, mono: true };
  for (let row = first; row < last; row += 1) {
    for (let column = from; column < to; column += 1) {
      const found = cell(row, column);
      if (!found) continue;
      const x = left + column * cellWidth - sight.x,
        y = top + row * cellHeight - sight.y;
      pen.rect(x, y, cellWidth - gap, cellHeight - gap, scale.colour(found.value), {
        radius: gap * 2,
      });
      if (found.text && cellWidth >= 30)
        pen.text(fitted(found.text, cellWidth - 6, text), x + 3, y + cellHeight * 0.66, {
          ...text,
          fill: scale.inkOn(found.value),
        });
      if (found.mark)
        pen.rect(x + 1, y + 1, cellWidth - gap - 2, cellHeight - gap - 2, null, {
          radius: 2,
          stroke: found.mark,
          line: 2,
        });
    }
  }
  for (const [at, colour] of [
    [pointed, ink("soft")],
    [cursor, ink("accent")],
  ]) {
    if (at)
      pen.rect(
        left + at.column * cellWidth - sight.x,
        top + at.row * cellHeight - sight.y,
        cellWidth - gap,
        cellHeight - gap,
        null,
        { radius: 2, stroke: colour, line: 2 },
      );
  }
  drawAxes(pen, options, state, { ...sight, first, last, from, to });
}

function drawAxes(
  pen,
  { rowLabel, columnLabel, turned = false },
  { cellWidth, cellHeight, left, top },
  sight,
) {
  const soft = { size: 11, fill: ink("soft") };
  pen.rect(0, 0, left - 1, sight.height, ink("paper"));
  pen.rect(0, 0, sight.width, top - 1, ink("paper"));
  const down = labelStep(cellHeight, 13),
    across = labelStep(cellWidth, turned ? 13 : 30);
  for (let row = sight.first; row < sight.last; row += 1) {
    const y = top + row * cellHeight - sight.y;
    if (row % down || y < top - cellHeight / 2) continue;
    pen.text(
      fitted(rowLabel(row), left - 12, { ...soft, mono: true }),
      left - 8,
      y + cellHeight / 2 + 4,
      { ...soft, mono: true, anchor: "end", fill: ink("ink") },
    );
  }
  for (let column = sight.from; column < sight.to; column += 1) {
    const x = left + column * cellWidth - sight.x;
    if (column % across || x < left - cellWidth / 2) continue;
    if (turned)
      pen.text(
        fitted(columnLabel(column), top - 10, { ...soft, mono: true }),
        x + cellWidth / 2 + 4,
        top - 6,
        { ...soft, mono: true, turn: -90, fill: ink("ink") },
      );
    else
      pen.text(
        fitted(columnLabel(column), cellWidth * across - 2, soft),
        x + cellWidth / 2,
        top - 8,
        { ...soft, anchor: "middle" },
      );
  }
  pen.rect(0, 0, left - 1, top - 1, ink("paper"));
}

// All of it, in sight or not, for a file.
export function wholeGrid(options, state) {
  const width = Math.min(MOST, state.left + state.cellWidth * options.columns),
    height = Math.min(MOST, state.top + state.cellHeight * options.rows);
  const svg = svgRoot(width, height, options.title);
  drawCells(svgPen(svg), options, { ...state, pointed: null }, { x: 0, y: 0, width, height });
  return svg;
}
