// Attention of a head from one token: arcs over the text, thicker with more weight.

import { announce, dotted, make } from "./dom.js";
import { themeColour, scaleOf } from "./colours.js";
import { percent } from "./number_format.js";
import { svgSurface, svgRoot, textWidth } from "./drawing.js";

const SIZE = 14,
  GAP = 3,
  PAD = 5,
  LINE = 26,
  LEAST = 0.01,
  HIGHEST = 130;

// row: one weight for each token up to `at`. onchoose(at) is called with another token.
export function arcs({ tokens, row, at, onchoose, title }) {
  const boxes = laidOut(tokens),
    end = boxes[boxes.length - 1],
    width = end.x + end.width + PAD;
  const reach = Math.max(
    ...row.map((weight, from) => (weight >= LEAST ? boxes[at].middle - boxes[from].middle : 0)),
    60,
  );
  const base = Math.min(HIGHEST, 22 + reach * 0.32) + 8;
  const svg = svgRoot(width, base + LINE + 8, title),
    surface = svgSurface(svg);
  svg.setAttribute("role", "group");
  const scale = scaleOf(row, { low: 0, high: 1, root: true });
  row.forEach((weight, from) => {
    if (weight < LEAST) return;
    const high = Math.min(HIGHEST, 22 + (boxes[at].middle - boxes[from].middle) * 0.32);
    const [left, right] = [boxes[from].middle, boxes[at].middle];
    const d =
      from === at
        ? loop(right, base)
        : `M ${left} ${base} C ${left} ${base - high}, ${right} ${base - high}, ${right} ${base}`;
    surface.path(d, {
      stroke: themeColour("arc"),
      width: 0.8 + 5 * weight,
      opacity: 0.25 + 0.7 * weight,
    });
  });
  tokens.forEach((text, position) =>
    drawToken(surface, { text, position, token: boxes[position], base, scale, row, at, onchoose }),
  );
  const frame = make(
    "div",
    { class: "arcs picture", tabindex: 0, role: "region", "aria-label": title },
    svg,
  );
  requestAnimationFrame(() => {
    frame.scrollLeft = boxes[at].middle - frame.clientWidth * 0.8;
  });
  return frame;
}

function laidOut(tokens) {
  let x = PAD;
  return tokens.map((text) => {
    const width = Math.max(10, textWidth(dotted(text), { size: SIZE, mono: true })) + 2 * PAD;
    const token = { x, width, middle: x + width / 2 };
    x += width + GAP;
    return token;
  });
}

function loop(x, base) {
  return `M ${x - 5} ${base} C ${x - 14} ${base - 26}, ${x + 14} ${base - 26}, ${x + 5} ${base}`;
}

function drawToken(surface, { text, position, token, base, scale, row, at, onchoose }) {
  const weight = row[position] ?? null,
    label = `token ${position}, ${dotted(text)}${weight === null ? "" : `, ${percent(weight)}`}`;
  const isHere = position === at;
  const box = surface.rect(
    token.x,
    base + 3,
    token.width,
    LINE,
    weight === null ? themeColour("panel") : scale.colour(weight),
    { radius: 5, stroke: isHere ? themeColour("accent") : null, line: 2 },
  );
  const letters = surface.text(dotted(text), token.middle, base + 3 + LINE * 0.68, {
    size: SIZE,
    mono: true,
    anchor: "middle",
    fill: weight === null ? themeColour("soft") : scale.textColour(weight),
  });
  letters.setAttribute("pointer-events", "none");
  if (!onchoose) return;
  const choose = () => {
    onchoose(position);
    announce(label);
  };
  for (const [name, value] of Object.entries({
    role: "button",
    tabindex: isHere ? 0 : -1,
    "aria-label": `attention from ${label}`,
    "data-at": position,
  }))
    box.setAttribute(name, value);
  box.addEventListener("click", choose);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose();
    }
    if (step) {
      event.preventDefault();
      box.ownerSVGElement.querySelector(`[data-at="${position + step}"]`)?.focus();
    }
  });
}
