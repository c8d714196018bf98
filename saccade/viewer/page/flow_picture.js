// Draws the graph of one prediction as SVG: columns are positions, rows are layers, widths are effects.

import { announce, dotted, make, makeSvg } from "./dom.js";
import { themeColour } from "./colours.js";
import { svgRoot, svgSurface, truncated } from "./drawing.js";
import { signed } from "./number_format.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const LEFT = 44,
  TOP = 44,
  ROW = 34,
  COLUMN = 50,
  WIDTH = 42,
  HEIGHT = 20,
  WIDEST = 9;

// onopen(node) is called with a head that is clicked, or chosen with Enter.
export function flowPicture(flow, onopen) {
  const { tokens, layers, places, width, height } = placed(flow);
  const svg = svgRoot(width, height, `Flow to the prediction of ${dotted(flow.token)}`),
    surface = svgSurface(svg);
  svg.setAttribute("role", "group");
  const soft = { size: 11, fill: themeColour("soft") };
  layers.forEach((layer, at) =>
    surface.text(String(layer), LEFT - 10, rowAt(at) + 4, { ...soft, anchor: "end" }),
  );
  surface.text("layer", LEFT - 10, TOP - 2, { ...soft, anchor: "end" });
  const largest = Math.max(...flow.edges.map((edge) => Math.abs(edge.value)), 1e-9);
  const edges = [...flow.edges].reverse(); // the largest are drawn last, on top
  for (const edge of edges) drawEdge(svg, places, edge, largest);
  tokens.forEach((at) => {
    const { x, y } = places.get(`token@${at}`);
    const text = truncated(dotted(flow.tokens[at]), COLUMN - 4, { size: 12, mono: true });
    surface.text(text, x, y + 13, {
      size: 12,
      mono: true,
      anchor: "middle",
      fill: themeColour("ink"),
    });
    surface.text(String(at), x, y + 28, { ...soft, anchor: "middle" });
  });
  const end = places.get("prediction");
  surface.text(dotted(flow.token), end.x, end.y - 6, {
    size: 14,
    mono: true,
    anchor: "middle",
    fill: themeColour("ink"),
  });
  for (const node of flow.nodes) drawNode(svg, places.get(node.name), node, flow, onopen);
  const frame = make("div", { class: "picture flow-picture" }, svg);
  frame.addEventListener("pointerleave", hideTooltip);
  // The prediction is at the right end, and comes into sight first.
  requestAnimationFrame(() => {
    frame.scrollLeft = frame.scrollWidth;
  });
  return frame;
}

// Columns for the positions that occur, rows for the layers; heads of one cell stand beside each other.
function placed(flow) {
  const ends = new Set(flow.edges.map((edge) => edge.source));
  const tokens = flow.tokens
    .map((_, at) => at)
    .filter(
      (at) =>
        at === flow.position ||
        ends.has(`token@${at}`) ||
        flow.nodes.some((node) => node.position === at),
    );
  const layers = [...new Set(flow.nodes.map((node) => node.layer))].sort((a, b) => b - a);
  const inCell = ({ layer, position }) =>
    flow.nodes.filter((node) => node.layer === layer && node.position === position);
  const wide = tokens.map((at) =>
    Math.max(1, ...flow.nodes.filter((node) => node.position === at).map((n) => inCell(n).length)),
  );
  const starts = wide.map((_, at) => LEFT + COLUMN * wide.slice(0, at).reduce((a, b) => a + b, 0));
  const middle = (at) => starts[at] + (COLUMN * wide[at]) / 2;
  const bottom = rowAt(layers.length - 1) + ROW,
    places = new Map();
  tokens.forEach((position, at) => places.set(`token@${position}`, { x: middle(at), y: bottom }));
  places.set("prediction", { x: middle(tokens.indexOf(flow.position)), y: TOP - 18 });
  for (const node of flow.nodes) {
    const cell = inCell(node),
      off = cell.indexOf(node) - (cell.length - 1) / 2;
    const x = middle(tokens.indexOf(node.position)) + off * COLUMN;
    places.set(node.name, { x, y: rowAt(layers.indexOf(node.layer)) });
  }
  const width = LEFT + COLUMN * wide.reduce((a, b) => a + b, 0) + 8;
  return { tokens, layers, places, width, height: bottom + 36 };
}

function rowAt(at) {
  return TOP + ROW * (at + 0.6);
}

function drawEdge(svg, places, { source, to, value }, largest) {
  const from = places.get(source),
    end = places.get(to);
  if (!from || !end) return;
  const below = source.startsWith("token@") ? from.y : from.y - HEIGHT / 2,
    above = to === "prediction" ? end.y : end.y + HEIGHT / 2,
    bend = (below - above) / 2;
  const path = makeSvg("path", {
    d: `M ${from.x} ${below} C ${from.x} ${below - bend}, ${end.x} ${above + bend}, ${end.x} ${above}`,
    fill: "none",
    stroke: themeColour(value < 0 ? "below-2" : "add"),
    "stroke-width": Math.max(0.8, WIDEST * Math.sqrt(Math.abs(value) / largest)),
    "stroke-opacity": 0.42,
    "data-edge": `${source}>${to}`,
  });
  const name = (each) => (each === "prediction" ? "the prediction" : each.replace("token@", "token "));
  withTip(path, () => [
    make("b", {}, `${name(source)} to ${name(to)}`),
    make("p", { class: "number" }, `${signed(value, 3)} logits`),
  ]);
  svg.append(path);
}

function drawNode(svg, { x, y }, node, flow, onopen) {
  const label =
    `head ${node.layer}.${node.head} at ${node.position} ${dotted(flow.tokens[node.position])}: exact effect ` +
    `${signed(node.exact, 3)} logits, attribution ${signed(node.attribution, 3)}`;
  const group = makeSvg("g", { role: "button", tabindex: 0, "aria-label": label });
  group.dataset.node = node.name;
  const isLow = node.exact < 0;
  group.append(
    makeSvg("rect", {
      x: x - WIDTH / 2,
      y: y - HEIGHT / 2,
      width: WIDTH,
      height: HEIGHT,
      rx: 5,
      fill: themeColour("paper"),
      stroke: themeColour(isLow ? "below-2" : "add"),
      "stroke-width": 1.6,
    }),
  );
  svgSurface(group).text(`${node.layer}.${node.head}`, x, y + 4, {
    size: 12,
    anchor: "middle",
    fill: themeColour("ink"),
  });
  group.addEventListener("click", () => onopen(node));
  group.addEventListener("keydown", (event) => event.key === "Enter" && onopen(node));
  group.addEventListener("focus", () => announce(label));
  withTip(group, () => [
    make("b", {}, `head ${node.layer}.${node.head} at token ${node.position}`),
    make("p", { class: "number" }, `exact effect ${signed(node.exact, 3)} logits`),
    make("p", { class: "number" }, `attribution ${signed(node.attribution, 3)} logits:`),
    make("p", { class: "number" }, `direct ${signed(node.direct, 3)}`),
    make("p", { class: "number soft" }, `through what is not drawn ${signed(node.elsewhere, 3)}`),
  ]);
  svg.append(group);
}

function withTip(element, content) {
  element.addEventListener("pointermove", (event) =>
    showTooltip(content(), event.clientX, event.clientY),
  );
  element.addEventListener("pointerleave", hideTooltip);
}
