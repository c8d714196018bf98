// The head map: one value per head, of the chosen measure.

import { dotted, make } from "./dom.js";
import { scaleOf } from "./colours.js";
import { heatMap, nameOf } from "./heat_map.js";
import { legend } from "./legend.js";
import { formatOf, shownTokens, titleOf } from "./measures.js";
import { hasWeakLens } from "./questions.js";
import { setState } from "./state.js";

const ROOT = ["effect", "token", "direct", "lens"]; // most heads have little of these
const OF_LENS = ["lens", "agreement", "gain", "fidelity", "mass"];

// The map and its legend.
export function headMap(state, reading, found) {
  const format = formatOf(found),
    values = found.values;
  const others = reading.others.filter((part) => values.has(nameOf(part)));
  const cells = [...reading.heads, ...others].map((part) => {
    const value = values.get(nameOf(part)) ?? null,
      shown = shownTokens(part, found.measure),
      tokens = shown.tokens
        .slice(0, 3)
        .map((token) => dotted(token.text))
        .join(", ");
    return {
      ...part,
      value: value ?? NaN,
      isWeak: OF_LENS.includes(found.measure) && hasWeakLens(part),
      label: `${titleOf(part)}: ${format(value)} ${found.unit}; ${shown.name}: ${tokens}`,
      shown,
    };
  });
  // The colours are those of heads: a whole layer has larger effects, and may lie beyond the scale.
  const heads = cells.filter((cell) => cell.kind === "head");
  const scale = scaleOf(
    (heads.length ? heads : cells).map((cell) => cell.value),
    { signed: found.isTwoWay, root: ROOT.includes(found.measure) },
  );
  const map = heatMap({
    cells,
    scale,
    chosen: state.head || null,
    title: `Heads of ${reading.model}, ${found.label}`,
    onchoose: (name) =>
      setState({ screen: "head", head: name }, { isStep: state.screen !== "head" }),
    tip: (cell) =>
      [
        make("b", {}, titleOf(cell)),
        make("p", { class: "number" }, `${format(cell.value)} ${found.unit}`),
        tipTokens(cell.shown.name, cell.shown.tokens),
        cell.shown.lower.length
          ? tipTokens(cell.shown.name === "promotes" ? "suppresses" : "less", cell.shown.lower)
          : null,
        cell.isWeak ? make("p", { class: "soft" }, "weak lens") : null,
      ].filter(Boolean),
  });
  const frame = make(
    "div",
    { class: "picture" },
    map,
    legend(scale, format, found.unit, { hasWeak: cells.some((cell) => cell.isWeak) }),
  );
  frame.map = map;
  return frame;
}

function tipTokens(name, tokens) {
  const shown = tokens.slice(0, 5).map((token) => make("span", { class: "token" }, dotted(token.text)));
  return make("p", { class: "tip-tokens" }, make("span", { class: "soft" }, name), shown);
}
