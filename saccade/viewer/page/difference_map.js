// The difference of the effects of heads between two prompts: a map, and a table of the largest.

import { columnNames, dotted, make, panel } from "./dom.js";
import { scaleOf } from "./colours.js";
import { signed } from "./number_format.js";
import { titleOf } from "./measures.js";
import { heatMap, nameOf } from "./heat_map.js";
import { legend } from "./legend.js";
import { setState } from "./state.js";

const RANKED = 12;

export function differences(found) {
  if (!found) return null;
  const known = found.heads.filter((head) => head.difference !== null);
  const scale = scaleOf(
    known.map((head) => head.difference),
    { signed: true, root: true },
  );
  const cells = known.map((head) => ({
    ...head,
    value: head.difference,
    isWeak: false,
    label: `${titleOf(head)}: right minus left ${signed(head.difference)} logits`,
  }));
  const open = (name) =>
    setState({ screen: "head", head: name, text: found.right.text, at: "-1" }, { isStep: true });
  const map = heatMap({
    cells,
    scale,
    title: "Difference of each head, right minus left",
    onchoose: open,
    tip: (cell) => [
      make("b", {}, titleOf(cell)),
      make(
        "p",
        { class: "number" },
        `left ${signed(cell.effect[0])}  right ${signed(cell.effect[1])}`,
      ),
      cell.direct
        ? make(
            "p",
            { class: "number" },
            `direct: left ${signed(cell.direct[0])}  right ${signed(cell.direct[1])}`,
          )
        : null,
      make("p", { class: "number" }, `difference ${signed(cell.difference)}`),
    ],
  });
  const token = make("span", { class: "token" }, dotted(found.token.text));
  return make(
    "div",
    { class: "below even" },
    panel(
      "Heads that differ",
      make(
        "p",
        { class: "note" },
        "Effect of each head on the logit of ",
        token,
        found.against
          ? [" minus that of ", make("span", { class: "token" }, dotted(found.against.text))]
          : " minus the mean logit",
        ": right minus left.",
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
  const tokenSpans = (tokens) =>
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
      make("td", { class: "number" }, signed(head.effect[0])),
      make("td", { class: "number" }, signed(head.effect[1])),
      make("td", { class: "number strong" }, signed(head.difference)),
      make(
        "td",
        { class: "number" },
        head.direct ? signed(head.direct[1] - head.direct[0]) : "–",
      ),
      make("td", { class: "top-tokens" }, tokenSpans(head.adds[0])),
      make("td", { class: "top-tokens" }, tokenSpans(head.adds[1])),
    ),
  );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Heads by difference" },
    make(
      "table",
      { class: "metrics" },
      columnNames([
        "head",
        "#left",
        "#right",
        "#difference",
        "#of the direct part",
        "more than the baseline, left",
        "more than the baseline, right",
      ]),
      make("tbody", {}, rows),
    ),
  );
}
