// The head map: one value per head, of the chosen measure.

import { dotted, make } from "./dom.js";
import { scaleOf } from "./colours.js";
import { heatMap, legend, nameOf } from "./heat_map.js";
import { formatOf, titleOf } from "./measures.js";
import { isWeakLens } from "./questions.js";
import { setState } from "./state.js";

// The map and its legend.
export function headMap(state, reading, found) {
  const format = formatOf(state, found),
    values = found.values;
  const cells = reading.heads.map((head) => {
    const value = values.get(nameOf(head)) ?? null,
      tokens = head.adds
        .slice(0, 3)
        .map((token) => dotted(token.text))
        .join(", ");
    return {
      layer: head.layer,
      head: head.head,
      value: value ?? NaN,
      isWeak: isWeakLens(head.quality),
      label: `${titleOf(head)}: ${format(value)} ${found.unit}; more than the baseline: ${tokens}`,
      adds: head.adds,
    };
  });
  const scale = scaleOf(
    cells.map((cell) => cell.value),
    { signed: found.isTwoWay, root: ["lens", "effect", "direct"].includes(state.measure) },
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
        make(
          "p",
          { class: "tip-tokens" },
          cell.adds.slice(0, 5).map((token) => make("span", { class: "token" }, dotted(token.text))),
        ),
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
