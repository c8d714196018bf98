// Draws a grid: its cells, its axes, and all of it as one picture.

import { themeColour } from "./colours.js";
import { truncated, svgSurface, svgRoot } from "./drawing.js";
import { labelStep } from "./number_format.js";

const MOST = 4096; // pixels per side of an exported picture: a limit of browsers

export function gridSizes(
  { columns, least = 22, most = 96, cellHeight = 24, left = 96, top = 24 },
  frame,
) {
  const room = frame.clientWidth - left - 1;
  return { cellWidth: Math.max(least, Math.min(most, room / columns)), cellHeight, left, top };
}

export function drawCells(surface, options, state, visible) {
  const { rows, columns, cell, scale } = options,
    { cellWidth, cellHeight, left, top, cursor, pointed } = state;
  const first = Math.floor(visible.y / cellHeight),
    last = Math.min(rows, Math.ceil((visible.y + visible.height - top) / cellHeight) + 1);
  const from = Math.floor(visible.x / cellWidth),
    to = Math.min(columns, Math.ceil((visible.x + visible.width - left) / cellWidth) + 1);
  const gap = cellWidth > 8 && cellHeight > 8 ? 1 : 0,
    text = { size: cellWidth < 44 ? 11 : 12, mono: true };
  for (let row = first; row < last; row += 1) {
    for (let column = from; column < to; column += 1) {
      const found = cell(row, column);
      if (!found) continue;
      const x = left + column * cellWidth - visible.x,
        y = top + row * cellHeight - visible.y;
      surface.rect(x, y, cellWidth - gap, cellHeight - gap, scale.colour(found.value), {
        radius: gap * 2,
      });
      if (found.text && cellWidth >= 30)
        surface.text(truncated(found.text, cellWidth - 6, text), x + 3, y + cellHeight * 0.66, {
          ...text,
          fill: scale.textColour(found.value),
        });
      if (found.mark)
        surface.rect(x + 1, y + 1, cellWidth - gap - 2, cellHeight - gap - 2, null, {
          radius: 2,
          stroke: found.mark,
          line: 2,
        });
    }
  }
  for (const [at, colour] of [
    [pointed, themeColour("soft")],
    [cursor, themeColour("accent")],
  ]) {
    if (at)
      surface.rect(
        left + at.column * cellWidth - visible.x,
        top + at.row * cellHeight - visible.y,
        cellWidth - gap,
        cellHeight - gap,
        null,
        { radius: 2, stroke: colour, line: 2 },
      );
  }
  drawAxes(surface, options, state, { ...visible, first, last, from, to });
}

function drawAxes(
  surface,
  { rowLabel, columnLabel, turned = false },
  { cellWidth, cellHeight, left, top },
  visible,
) {
  const soft = { size: 11, fill: themeColour("soft") };
  surface.rect(0, 0, left - 1, visible.height, themeColour("paper"));
  surface.rect(0, 0, visible.width, top - 1, themeColour("paper"));
  const down = labelStep(cellHeight, 13),
    across = labelStep(cellWidth, turned ? 13 : 30);
  for (let row = visible.first; row < visible.last; row += 1) {
    const y = top + row * cellHeight - visible.y;
    if (row % down || y < top - cellHeight / 2) continue;
    surface.text(
      truncated(rowLabel(row), left - 12, { ...soft, mono: true }),
      left - 8,
      y + cellHeight / 2 + 4,
      { ...soft, mono: true, anchor: "end", fill: themeColour("ink") },
    );
  }
  for (let column = visible.from; column < visible.to; column += 1) {
    const x = left + column * cellWidth - visible.x;
    if (column % across || x < left - cellWidth / 2) continue;
    if (turned)
      surface.text(
        truncated(columnLabel(column), top - 10, { ...soft, mono: true }),
        x + cellWidth / 2 + 4,
        top - 6,
        { ...soft, mono: true, turn: -90, fill: themeColour("ink") },
      );
    else
      surface.text(
        truncated(columnLabel(column), cellWidth * across - 2, soft),
        x + cellWidth / 2,
        top - 8,
        { ...soft, anchor: "middle" },
      );
  }
  surface.rect(0, 0, left - 1, top - 1, themeColour("paper"));
}

// The whole grid, visible or not, for a file.
export function wholeGrid(options, state) {
  const width = Math.min(MOST, state.left + state.cellWidth * options.columns),
    height = Math.min(MOST, state.top + state.cellHeight * options.rows);
  const svg = svgRoot(width, height, options.title);
  drawCells(svgSurface(svg), options, { ...state, pointed: null }, { x: 0, y: 0, width, height });
  return svg;
}
