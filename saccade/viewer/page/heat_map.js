// A map of all heads, layers from left to right and heads from top to bottom. Cells are elements, so that keyboards and
// screen readers can reach them.

import { make, makeSvg, announce } from "./dom.js";
import { themeColour } from "./colours.js";
import { svgSurface, svgRoot } from "./drawing.js";
import { labelStep } from "./number_format.js";
import { showTooltip, hideTooltip } from "./tooltip.js";

const ROWS = { attention: "attn", "feed-forward": "MLP", residual: "stream" }; // below the heads
const SPACE = 7; // between the heads and those rows
const LEFT = 26,
  WIDE = 46,
  TOP = 20,
  GAP = 2,
  LARGEST = 34,
  SMALLEST = 9;

let patterns = 0;

// cells: {layer, head, kind, value, label, isWeak}; a part that is no head has a kind, and a row below the heads. A cell
// without a kind or head is the residual stream. The choice changes without a redraw.
export function heatMap({ cells, scale, chosen = null, onchoose = () => {}, title, tip = null }) {
  const layers = [...new Set(cells.map((cell) => cell.layer))];
  const rows = rowsOf(cells);
  const frame = make("div", { class: "heat-map" });
  const state = { cells, scale, chosen, focused: chosen ?? nameOf(cells[0]), rects: new Map() };
  const choose = (name) => {
    select(state, name);
    onchoose(name);
  };

  function draw() {
    const width = (frame.clientWidth || 640) - 8; // minus its padding
    const isStream = rows.length === 1 && typeof rows[0] === "string";
    const left = rows.some((row) => typeof row === "string") && !isStream ? WIDE : LEFT;
    const size = Math.max(SMALLEST, Math.min(LARGEST, (width - left) / layers.length));
    const high = Math.max(size, 18);
    const top = (at) => TOP + at * high + (at && typeof rows[at] === "string" ? SPACE : 0);
    const svg = svgRoot(left + size * layers.length, top(rows.length - 1) + high, title);
    svg.setAttribute("role", "grid");
    state.rects.clear();
    axes(svg, { layers, rows, size, high, left, top, isStream });
    for (const row of rows) {
      const line = svg.appendChild(makeSvg("g", { role: "row" }));
      for (const cell of state.cells.filter((each) => rowOf(each) === row)) {
        const rect = svgSurface(line).rect(
          left + layers.indexOf(cell.layer) * size,
          top(rows.indexOf(row)),
          size - GAP,
          high - GAP,
          null,
          { radius: Math.min(4, size / 5) },
        );
        rect.dataset.head = nameOf(cell);
        rect.setAttribute("role", "gridcell");
        state.rects.set(nameOf(cell), rect);
      }
    }
    paint(state, svg);
    const hadFocus = frame.contains(document.activeElement);
    frame.replaceChildren(svg);
    if (hadFocus) state.rects.get(state.focused)?.focus();
  }

  frame.addEventListener(
    "click",
    (event) => event.target.dataset.head && choose(event.target.dataset.head),
  );
  frame.addEventListener("keydown", (event) => moveFocus(event, state, { layers, rows, choose }));
  frame.addEventListener("pointermove", (event) => {
    const cell = state.cells.find((each) => nameOf(each) === event.target.dataset.head);
    if (cell && tip) showTooltip(tip(cell), event.clientX, event.clientY);
    else hideTooltip();
  });
  frame.addEventListener("pointerleave", hideTooltip);
  new ResizeObserver(draw).observe(frame);
  frame.choose = (name) => select(state, name);
  return frame;
}

export function nameOf({ layer, head, kind }) {
  if (head !== null && head !== undefined) return `${layer}.${head}`;
  return kind && kind !== "residual" ? `${layer}.${kind}` : String(layer);
}

function rowOf({ head, kind }) {
  return head ?? kind ?? "residual";
}

// The heads, then the other parts.
function rowsOf(cells) {
  const found = new Set(cells.map(rowOf)),
    heads = [...found].filter((row) => typeof row === "number");
  return [...heads.sort((a, b) => a - b), ...Object.keys(ROWS).filter((row) => found.has(row))];
}

function axes(svg, { layers, rows, size, high, left, top, isStream }) {
  const group = svg.appendChild(makeSvg("g", { "aria-hidden": "true" })),
    surface = svgSurface(group);
  const step = labelStep(size, 22),
    soft = { size: 11, fill: themeColour("soft"), anchor: "middle" };
  layers.forEach((layer, at) => {
    if (at % step === 0) surface.text(String(layer), left + at * size + (size - GAP) / 2, 12, soft);
  });
  if (isStream) return;
  rows.forEach((row, at) =>
    surface.text(ROWS[row] ?? String(row), left - 8, top(at) + high / 2 + 3, { ...soft, anchor: "end" }),
  );
}

function paint(state, svg) {
  const hatch = hatching(svg);
  svg.querySelectorAll(".weak").forEach((node) => node.remove());
  for (const cell of state.cells) {
    const rect = state.rects.get(nameOf(cell));
    if (!rect) continue;
    rect.setAttribute("fill", state.scale.colour(cell.value));
    rect.setAttribute("aria-label", cell.label);
    if (cell.isWeak) {
      const over = rect.cloneNode();
      for (const name of ["role", "aria-label", "data-head", "tabindex", "aria-selected", "stroke"])
        over.removeAttribute(name);
      over.setAttribute("fill", `url(#${hatch})`);
      over.setAttribute("class", "weak");
      over.setAttribute("aria-hidden", "true");
      over.setAttribute("pointer-events", "none");
      rect.after(over);
    }
  }
  select(state, state.chosen);
}

function select(state, name) {
  state.chosen = name;
  if (state.rects.has(name)) state.focused = name;
  for (const [each, rect] of state.rects) {
    const isChosen = each === name;
    rect.setAttribute("aria-selected", String(isChosen));
    rect.setAttribute("tabindex", each === state.focused ? 0 : -1);
    if (isChosen) {
      rect.setAttribute("stroke", themeColour("accent"));
      rect.setAttribute("stroke-width", 2.5);
    } else rect.removeAttribute("stroke");
  }
}

function moveFocus(event, state, { layers, rows, choose }) {
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const name = document.activeElement?.dataset?.head;
  if (!name) return;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    choose(name);
    return;
  }
  if (!steps[event.key] && event.key !== "Home" && event.key !== "End") return;
  event.preventDefault();
  const cell = state.cells.find((each) => nameOf(each) === name),
    [across, down] = steps[event.key] ?? [0, 0];
  let column = layers.indexOf(cell.layer) + across,
    row = rows.indexOf(rowOf(cell)) + down;
  if (event.key === "Home") column = 0;
  if (event.key === "End") column = layers.length - 1;
  const found = state.cells.find(
    (each) => each.layer === layers[column] && rowOf(each) === rows[row],
  );
  if (!found) return;
  state.focused = nameOf(found);
  state.rects.forEach((rect, each) =>
    rect.setAttribute("tabindex", each === state.focused ? 0 : -1),
  );
  state.rects.get(state.focused).focus();
  announce(found.label);
}

// Stripes over the cell of a weak lens.
function hatching(svg) {
  svg.querySelector("defs")?.remove();
  const id = `weak-${(patterns += 1)}`;
  svg.prepend(
    makeSvg(
      "defs",
      {},
      makeSvg(
        "pattern",
        { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        makeSvg("rect", { width: 2.5, height: 6, fill: themeColour("paper") }),
      ),
    ),
  );
  return id;
}
