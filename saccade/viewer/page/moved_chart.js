// The tokens whose probability changes most: measured, and predicted by the lens.

import { columnNames, dotted, make, panel } from "./dom.js";
import { themeColour } from "./colours.js";
import { percent, signed } from "./number_format.js";
import { truncated, svgSurface, svgRoot } from "./drawing.js";

const ROW = 30,
  NUMBER_WIDTH = 58,
  TOP = 26;

export function movedChart(found) {
  const hasLens = found.moved.some((token) => token.predicted !== null);
  const frame = make("div", { class: "picture" });
  const draw = () =>
    frame.replaceChildren(chart(found.moved, Math.max(300, frame.clientWidth || 640), hasLens));
  new ResizeObserver(draw).observe(frame);
  return panel(
    "Tokens whose probability changes most",
    make(
      "p",
      { class: "note" },
      "Change of the log-probability, in nats: the dark bar is measured",
      hasLens
        ? `, the pale one is predicted by the lens ${found.lens ?? ""}.`
        : "; no lens predicts the effect of these changes.",
    ),
    frame,
    table(found.moved),
  );
}

function chart(tokens, width, hasLens) {
  const svg = svgRoot(width, TOP + ROW * tokens.length, "Change of log-probability by token"),
    surface = svgSurface(svg);
  const most = Math.max(
    ...tokens.flatMap((token) => [Math.abs(token.actual), Math.abs(token.predicted ?? 0)]),
    1e-6,
  );
  const room = width < 460 ? 80 : 120, // for the tokens
    half = (width - room - 2 * NUMBER_WIDTH) / 2,
    zero = room + NUMBER_WIDTH + half,
    unit = half / most;
  surface.path(`M ${zero} ${TOP - 6} V ${TOP + ROW * tokens.length}`, {
    stroke: themeColour("line"),
  });
  surface.text("less likely", zero - 8, 12, { size: 11, fill: themeColour("soft"), anchor: "end" });
  surface.text("more likely", zero + 8, 12, { size: 11, fill: themeColour("soft") });
  tokens.forEach((token, at) => {
    const y = TOP + at * ROW;
    surface.text(truncated(dotted(token.text), room - 10, { size: 13, mono: true }), room - 8, y + 16, {
      size: 13,
      mono: true,
      anchor: "end",
    });
    bar(surface, {
      zero,
      unit,
      value: token.actual,
      y: y + 3,
      height: hasLens ? 10 : 16,
      fill: themeColour(token.actual < 0 ? "drop" : "add"),
    });
    if (token.predicted !== null)
      bar(surface, {
        zero,
        unit,
        value: token.predicted,
        y: y + 15,
        height: 6,
        fill: themeColour("pale"),
      });
    const left = token.actual < 0;
    surface.text(signed(token.actual), zero + token.actual * unit + (left ? -6 : 6), y + 13, {
      size: 11,
      fill: themeColour("soft"),
      anchor: left ? "end" : "start",
    });
  });
  return svg;
}

function bar(surface, { zero, unit, value, y, height, fill }) {
  surface.rect(
    value < 0 ? zero + value * unit : zero,
    y,
    Math.max(1, Math.abs(value) * unit),
    height,
    fill,
    { radius: 2 },
  );
}

function table(tokens) {
  const rows = tokens.map((token) =>
    make(
      "tr",
      {},
      make("th", { scope: "row", class: "token" }, dotted(token.text)),
      make("td", { class: "number" }, percent(token.before)),
      make("td", { class: "number" }, percent(token.after)),
      make("td", { class: "number" }, signed(token.actual)),
      make("td", { class: "number" }, token.predicted === null ? "–" : signed(token.predicted)),
    ),
  );
  return make(
    "details",
    { class: "more" },
    make("summary", {}, "The same as a table"),
    make(
      "table",
      { class: "metrics" },
      columnNames(["token", "#before", "#after", "#measured", "#predicted by the lens"]),
      make("tbody", {}, rows),
    ),
  );
}
