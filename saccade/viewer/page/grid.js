// A large grid of coloured cells with tokens in them. Only visible cells are drawn, so a thousand rows scroll as
// smoothly as ten; the axes do not scroll.

import { make, announce } from "./dom.js";
import { canvasSurface } from "./drawing.js";
import { drawCells, gridSizes, wholeGrid } from "./grid_drawing.js";
import { showTooltip, hideTooltip } from "./tooltip.js";

const STEPS = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  PageUp: [-10, 0],
  PageDown: [10, 0],
  Home: [0, -Infinity],
  End: [0, Infinity],
};

// cell(row, column) -> {value, text, mark}; label(row, column) -> text for screen readers.
export function grid(options) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const spacer = make("div", { class: "grid-space" }, canvas);
  const label = `${options.title}. Arrow keys move, Enter chooses.`;
  const frame = make(
    "div",
    {
      class: "grid",
      role: "application",
      "aria-roledescription": "grid",
      "aria-label": label,
      tabindex: 0,
    },
    spacer,
  );
  const state = {
    ...gridSizes(options, frame),
    cursor: options.cursor ?? null,
    pointed: null,
    isScheduled: false,
  };
  const parts = {
    onchoose: () => {},
    onpoint: () => {},
    ...withoutUndefined(options),
    options,
    canvas,
    spacer,
    frame,
    state,
  };
  frame.addEventListener("scroll", () => drawSoon(parts), { passive: true });
  listenToPointer(parts);
  listenToKeys(parts);
  frame.redraw = () => resize(parts);
  frame.picture = () => wholeGrid(options, state);
  new ResizeObserver(frame.redraw).observe(frame);
  return frame;
}

function withoutUndefined(options) {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

function resize(parts) {
  const { options, frame, spacer, state } = parts;
  Object.assign(state, gridSizes(options, frame));
  spacer.style.width = `${state.left + state.cellWidth * options.columns}px`;
  spacer.style.height = `${state.top + state.cellHeight * options.rows}px`;
  drawSoon(parts);
}

function drawSoon(parts) {
  if (parts.state.isScheduled) return;
  parts.state.isScheduled = true;
  requestAnimationFrame(() => {
    parts.state.isScheduled = false;
    draw(parts);
  });
}

function draw({ options, frame, spacer, canvas, state }) {
  const width = Math.min(frame.clientWidth, spacer.offsetWidth),
    height = Math.min(frame.clientHeight, spacer.offsetHeight);
  if (!width || !height) return;
  const ratio = devicePixelRatio || 1,
    wide = Math.round(width * ratio),
    high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) {
    Object.assign(canvas, { width: wide, height: high });
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  drawCells(canvasSurface(context), options, state, {
    x: frame.scrollLeft,
    y: frame.scrollTop,
    width,
    height,
  });
}

// The cell under the pointer; null over the axes and outside of the grid.
function cellAt({ options, canvas, frame, state }, event) {
  const box = canvas.getBoundingClientRect(),
    x = event.clientX - box.left - state.left,
    y = event.clientY - box.top - state.top;
  const column = Math.floor((x + frame.scrollLeft) / state.cellWidth),
    row = Math.floor((y + frame.scrollTop) / state.cellHeight);
  return x >= 0 && y >= 0 && row < options.rows && column < options.columns
    ? { row, column }
    : null;
}

function listenToPointer(parts) {
  const { frame, state, options, onpoint, onchoose } = parts;
  frame.addEventListener("pointermove", (event) => {
    const at = cellAt(parts, event);
    if (at && at.row === state.pointed?.row && at.column === state.pointed?.column) return;
    state.pointed = at;
    if (at && options.tip) showTooltip(options.tip(at.row, at.column), event.clientX, event.clientY);
    else hideTooltip();
    if (at) onpoint(at.row, at.column);
    drawSoon(parts);
  });
  frame.addEventListener("pointerleave", () => {
    state.pointed = null;
    hideTooltip();
    drawSoon(parts);
  });
  frame.addEventListener("click", (event) => {
    const at = cellAt(parts, event);
    if (!at) return;
    state.cursor = at;
    onchoose(at.row, at.column);
    drawSoon(parts);
  });
}

function listenToKeys(parts) {
  const { frame, state, label, onchoose } = parts;
  frame.addEventListener("keydown", (event) => {
    const step = STEPS[event.key];
    if (step) {
      event.preventDefault();
      moveCursor(parts, step);
    }
    if (event.key === "Enter" && state.cursor) onchoose(state.cursor.row, state.cursor.column);
  });
  frame.addEventListener("focus", () => {
    if (state.cursor) announce(label(state.cursor.row, state.cursor.column));
  });
}

function moveCursor(parts, [down, across]) {
  const { state, options, frame, label, onpoint } = parts,
    from = state.cursor ?? { row: 0, column: 0 };
  const row = Math.max(0, Math.min(options.rows - 1, from.row + down)),
    column = Math.max(0, Math.min(options.columns - 1, from.column + across));
  state.cursor = { row, column };
  scrollToCursor(frame, state);
  announce(label(row, column));
  onpoint(row, column);
  drawSoon(parts);
}

function scrollToCursor(frame, { cursor, cellWidth, cellHeight, left, top }) {
  const x = cursor.column * cellWidth,
    y = cursor.row * cellHeight;
  const across = frame.clientWidth - left - cellWidth,
    down = frame.clientHeight - top - cellHeight;
  if (x < frame.scrollLeft) frame.scrollLeft = x;
  else if (x > frame.scrollLeft + across) frame.scrollLeft = x - across;
  if (y < frame.scrollTop) frame.scrollTop = y;
  else if (y > frame.scrollTop + down) frame.scrollTop = y - down;
}
