// Heads as points over two metrics, on a canvas: a thousand points stay smooth. The arrow keys move to the nearest
// point in a direction, j and k (or Page Down and Page Up) through all points in order.

import { announce, make } from "./dom.js";
import { themeColour } from "./colours.js";
import { canvasSurface, svgSurface, svgRoot } from "./drawing.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const LEFT = 62,
  RIGHT = 16,
  TOP = 14,
  BOTTOM = 42,
  NEAR = 14; // pixels between the pointer and a point
const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// points: {name, x, y, value, label}; axes: {name, axis}; tip(point) -> nodes. `show` draws other points.
export function scatter({ title, onchoose, onpoint = () => {}, tip }) {
  const canvas = make("canvas", { "aria-hidden": "true" });
  const keys =
    "Arrow keys move to the nearest head, j and k to the next one and the one before, Enter opens it.";
  const frame = make(
    "div",
    {
      class: "scatter picture",
      role: "application",
      "aria-roledescription": "scatter plot",
      "aria-label": `${title}. ${keys}`,
      tabindex: 0,
    },
    canvas,
  );
  const state = { points: [], found: null, current: null, isScheduled: false };
  const parts = { canvas, frame, state, title };
  frame.show = (shown) => {
    Object.assign(state, shown);
    drawSoon(parts);
  };
  frame.point = (name) => {
    if (state.current === name) return;
    state.current = name;
    drawSoon(parts);
  };
  frame.picture = () => {
    const width = frame.clientWidth,
      height = frame.clientHeight,
      svg = svgRoot(width, height, title);
    draw(svgSurface(svg), state, width, height);
    return svg;
  };
  const point = (name) => {
    frame.point(name);
    onpoint(name);
  };
  listenToPointer(parts, { point, onchoose, tip });
  listenToKeys(parts, { point, onchoose });
  new ResizeObserver(() => drawSoon(parts)).observe(frame);
  return frame;
}

function drawSoon(parts) {
  if (parts.state.isScheduled) return;
  parts.state.isScheduled = true;
  requestAnimationFrame(() => {
    parts.state.isScheduled = false;
    const { canvas, frame, state } = parts,
      ratio = devicePixelRatio || 1,
      width = frame.clientWidth,
      height = frame.clientHeight;
    if (!width || !height || !state.x) return;
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw(canvasSurface(context), state, width, height);
  });
}

// Where each point is; those without a value on an axis are left out.
function place(state, width, height) {
  const across = (value) => LEFT + state.x.axis.share(value) * (width - LEFT - RIGHT),
    up = (value) => TOP + (1 - state.y.axis.share(value)) * (height - TOP - BOTTOM);
  const isKnown = ({ x, y }) => Number.isFinite(x) && Number.isFinite(y);
  state.placed = state.points
    .filter(isKnown)
    .map((point) => ({ ...point, px: across(point.x), py: up(point.y) }));
  return { across, up };
}

function draw(surface, state, width, height) {
  const { across, up } = place(state, width, height),
    { x, y, scale, found } = state;
  const soft = { size: 11, fill: themeColour("soft") };
  for (const value of y.axis.ticks) {
    surface.path(`M ${LEFT} ${up(value)} H ${width - RIGHT}`, { stroke: themeColour("line") });
    surface.text(y.axis.text(value), LEFT - 8, up(value) + 4, { ...soft, anchor: "end" });
  }
  for (const value of x.axis.ticks) {
    surface.path(`M ${across(value)} ${TOP} V ${height - BOTTOM}`, { stroke: themeColour("line") });
    surface.text(x.axis.text(value), across(value), height - BOTTOM + 16, { ...soft, anchor: "middle" });
  }
  const ink = { size: 12, fill: themeColour("ink") };
  surface.text(x.name, (LEFT + width - RIGHT) / 2, height - 6, { ...ink, anchor: "middle" });
  surface.text(y.name, 12, (TOP + height - BOTTOM) / 2, { ...ink, anchor: "middle", turn: -90 });
  const radius = state.placed.length > 500 ? 3.5 : 5,
    edge = themeColour("soft");
  const dot = (point, size, fill, options) =>
    surface.rect(point.px - size, point.py - size, 2 * size, 2 * size, fill, { radius: size, ...options });
  const isFound = ({ name }) => !found || found.has(name);
  // Heads that were not found lie below the others.
  for (const point of state.placed)
    if (!isFound(point)) dot(point, radius * 0.6, themeColour("pale"), { opacity: 0.55 });
  for (const point of state.placed)
    if (isFound(point)) dot(point, radius, scale.colour(point.value), { stroke: edge, line: 0.7 });
  const current = state.placed.find(({ name }) => name === state.current);
  if (!current) return;
  dot(current, radius + 2, scale.colour(current.value), { stroke: themeColour("accent"), line: 2.5 });
  surface.text(
    current.name,
    current.px + (current.px > width - 60 ? -radius - 7 : radius + 7),
    Math.max(TOP + 8, current.py - radius - 3),
    { size: 13, weight: 650, anchor: current.px > width - 60 ? "end" : "start" },
  );
}

function listenToPointer({ canvas, frame, state }, { point, onchoose, tip }) {
  const near = (event) => {
    const box = canvas.getBoundingClientRect(),
      x = event.clientX - box.left,
      y = event.clientY - box.top;
    let best = null,
      least = NEAR;
    for (const each of state.placed ?? []) {
      const far = Math.hypot(each.px - x, each.py - y) + (state.found && !state.found.has(each.name) ? 4 : 0);
      if (far < least) [best, least] = [each, far];
    }
    return best;
  };
  frame.addEventListener("pointermove", (event) => {
    const found = near(event);
    frame.style.cursor = found ? "pointer" : "";
    if (found) {
      point(found.name);
      showTooltip(tip(found), event.clientX, event.clientY);
    } else hideTooltip();
  });
  frame.addEventListener("pointerleave", hideTooltip);
  frame.addEventListener("click", (event) => {
    const found = near(event);
    if (found) onchoose(found.name);
  });
}

function listenToKeys({ frame, state }, { point, onchoose }) {
  const move = (found) => {
    if (!found) return;
    point(found.name);
    announce(found.label);
  };
  const current = () => state.placed?.find(({ name }) => name === state.current);
  frame.addEventListener("keydown", (event) => {
    const all = state.placed ?? [],
      at = all.findIndex(({ name }) => name === state.current);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" && current()) onchoose(state.current);
    const key = { j: "PageDown", k: "PageUp" }[event.key] ?? event.key;
    const target = {
      Home: () => all[0],
      End: () => all[all.length - 1],
      PageUp: () => all[Math.max(0, at - 1)],
      PageDown: () => all[Math.min(all.length - 1, at + 1)],
    }[key];
    if (!target && !DIRECTIONS[key]) return;
    event.preventDefault();
    move(target ? target() : at < 0 ? all[0] : nearest(all, all[at], DIRECTIONS[key]));
  });
  frame.addEventListener("focus", () => move(current() ?? state.placed?.[0]));
}

// The nearest point in a direction; what lies aside counts twice.
function nearest(points, { name, px, py }, [right, down]) {
  const far = (each) => {
    const along = right * (each.px - px) + down * (each.py - py),
      aside = Math.abs(down * (each.px - px)) + Math.abs(right * (each.py - py));
    return along > 0.5 ? along + 2 * aside : Infinity;
  };
  const ranked = points
    .filter((each) => each.name !== name && far(each) < Infinity)
    .sort((a, b) => far(a) - far(b));
  return ranked[0];
}
