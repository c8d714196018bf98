// Which heads make the difference between two prompts: a map, and a table of the largest.

import { columnNames, dotted, make, panel } from "./dom.js";
import { scaleOf } from "./colours.js";
import { signed } from "./figures.js";
import { titleOf } from "./measures.js";
import { heatMap, legend, nameOf } from "./heat_map.js";
import { setState } from "./state.js";

const RANKED = 12;

export function differences(found) {
  if (!found) return null;
  const known = found.heads.filter((head) => head.difference !== null);
  if (!known.length)
    return panel(
      "Heads",
      make("p", { class: "note" }, "This model has no direct path from its heads to the output."),
    );
  const scale = scaleOf(
    known.map((head) => head.difference),
    { signed: true, root: true },
  );
  const cells = found.heads.map((head) => ({
    ...head,
    value: head.difference ?? NaN,
    isWeak: false,
    label: `${titleOf(head)}: right less left ${signed(head.difference)} logits`,
  }));
  const open = (name) =>
    setState({ screen: "head", head: name, text: found.right.text, at: "-1" }, { isStep: true });
  const map = heatMap({
    cells,
    scale,
    title: "Difference of each head, right less left",
    onchoose: open,
    tip: (cell) => [
      make("b", {}, titleOf(cell)),
      make(
        "p",
        { class: "number" },
        `left ${signed(cell.direct[0])}  right ${signed(cell.direct[1])}`,
      ),
      make("p", { class: "number" }, `difference ${signed(cell.difference)}`),
    ],
  });
  const token = make("span", { class: "token" }, dotted(found.token.text));
  return make(
    "div",
    { class: "below even" },
    panel(
      "Which heads make the difference",
      make(
        "p",
        { class: "note" },
        "What each head adds directly to ",
        token,
        found.against
          ? [" less ", make("span", { class: "token" }, dotted(found.against.text))]
          : " less the mean token",
        ", right less left.",
      ),
      make(
        "div",
        { class: "picture" },
        map,
        legend(scale, (value) => signed(value), "logits"),
      ),
    ),
    panel(null, make("h2", {}, "Largest first"), differenceTable(known, open)),
  );
}

function differenceTable(heads, open) {
  const order = [...heads]
    .sort((a, b) => Math.abs(b.difference) - Math.abs(a.difference))
    .slice(0, RANKED);
  const said = (tokens) =>
    tokens.slice(0, 3).map((token) => make("span", { class: "token" }, dotted(token.text)));
  const rows = order.map((head) =>
    make(
      "tr",
      { "data-head": nameOf(head) },
      make(
        "th",
        { scope: "row" },
        make(
          "button",
          { type: "button", class: "link", onclick: () => open(nameOf(head)) },
          nameOf(head),
        ),
      ),
      make("td", { class: "number" }, signed(head.direct[0])),
      make("td", { class: "number" }, signed(head.direct[1])),
      make("td", { class: "number strong" }, signed(head.difference)),
      make("td", { class: "said" }, said(head.adds[0])),
      make("td", { class: "said" }, said(head.adds[1])),
    ),
  );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Heads by difference" },
    make(
      "table",
      { class: "figures" },
      columnNames(["head", "#left", "#right", "#differs", "adds, left", "adds, right"]),
      make("tbody", {}, rows),
    ),
  );
}
