// Where a head looks from one token: arcs over the text, the thicker the more weight.

import { announce, dotted, make } from "./dom.js";
import { ink, scaleOf } from "./colours.js";
import { percent } from "./figures.js";
import { svgPen, svgRoot, textWidth } from "./pens.js";

const SIZE = 14,
  GAP = 3,
  PAD = 5,
  LINE = 26,
  LEAST = 0.01,
  HIGHEST = 130;

// row: one weight for each token up to `at`. onchoose(at) looks from another token.
export function arcs({ tokens, row, at, onchoose, title }) {
  const spots = laidOut(tokens),
    end = spots[spots.length - 1],
    width = end.x + end.width + PAD;
  const reach = Math.max(
    ...row.map((weight, from) => (weight >= LEAST ? spots[at].middle - spots[from].middle : 0)),
    60,
  );
  const base = Math.min(HIGHEST, 22 + reach * 0.32) + 8;
  const svg = svgRoot(width, base + LINE + 8, title),
    pen = svgPen(svg);
  svg.setAttribute("role", "group");
  const scale = scaleOf(row, { low: 0, high: 1, root: true });
  row.forEach((weight, from) => {
    if (weight < LEAST) return;
    const high = Math.min(HIGHEST, 22 + (spots[at].middle - spots[from].middle) * 0.32);
    const [left, right] = [spots[from].middle, spots[at].middle];
    const d =
      from === at
        ? loop(right, base)
        : `M ${left} ${base} C ${left} ${base - high}, ${right} ${base - high}, ${right} ${base}`;
    pen.path(d, { stroke: ink("arc"), width: 0.8 + 5 * weight, opacity: 0.25 + 0.7 * weight });
  });
  tokens.forEach((text, place) =>
    drawToken(pen, { text, place, spot: spots[place], base, scale, row, at, onchoose }),
  );
  const frame = make(
    "div",
    { class: "arcs picture", tabindex: 0, role: "region", "aria-label": title },
    svg,
  );
  requestAnimationFrame(() => {
    frame.scrollLeft = spots[at].middle - frame.clientWidth * 0.8;
  });
  return frame;
}

function laidOut(tokens) {
  let x = PAD;
  return tokens.map((text) => {
    const width = Math.max(10, textWidth(dotted(text), { size: SIZE, mono: true })) + 2 * PAD;
    const spot = { x, width, middle: x + width / 2 };
    x += width + GAP;
    return spot;
  });
}

function loop(x, base) {
  return `M ${x - 5} ${base} C ${x - 14} ${base - 26}, ${x + 14} ${base - 26}, ${x + 5} ${base}`;
}

function drawToken(pen, { text, place, spot, base, scale, row, at, onchoose }) {
  const weight = row[place] ?? null,
    said = `token ${place}, ${dotted(text)}${weight === null ? "" : `, ${percent(weight)}`}`;
  const isHere = place === at;
  const box = pen.rect(
    spot.x,
    base + 3,
    spot.width,
    LINE,
    weight === null ? ink("panel") : scale.colour(weight),
    { radius: 5, stroke: isHere ? ink("accent") : null, line: 2 },
  );
  const letters = pen.text(dotted(text), spot.middle, base + 3 + LINE * 0.68, {
    size: SIZE,
    mono: true,
    anchor: "middle",
    fill: weight === null ? ink("soft") : scale.inkOn(weight),
  });
  letters.setAttribute("pointer-events", "none");
  if (!onchoose) return;
  const choose = () => {
    onchoose(place);
    announce(said);
  };
  for (const [name, value] of Object.entries({
    role: "button",
    tabindex: isHere ? 0 : -1,
    "aria-label": `look from ${said}`,
    "data-at": place,
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
      box.ownerSVGElement.querySelector(`[data-at="${place + step}"]`)?.focus();
    }
  });
}
