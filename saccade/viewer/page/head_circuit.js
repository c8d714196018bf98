// Why a head looks where it looks, and which heads it works with: drawn if they were measured.

import { dotted, make, panel } from "./dom.js";
import { term } from "./tooltip.js";
import { metricName } from "./atlas_metrics.js";
import { section } from "./head_card.js";
import { headLink } from "./head_link.js";
import { brief, fixed, percent } from "./number_format.js";

export function whyPanel({ why }) {
  const directions = why?.directions ?? [];
  if (!directions.length) return null;
  const chips = (tokens) => tokens.map(({ text }) => make("span", { class: "token chip" }, dotted(text)));
  return panel(
    null,
    section(
      "Why",
      "directions in which its queries find the keys it attends to",
      make(
        "ul",
        { class: "directions" },
        directions.map((each) =>
          make(
            "li",
            {},
            make("b", {}, each.name),
            make(
              "span",
              { class: "number soft" },
              ` ${percent(each.share)} of the contrast, ${percent(each.position_share)} position`,
            ),
            make("p", {}, chips(each.query_tokens), " → ", chips(each.key_tokens)),
          ),
        ),
      ),
      make("p", { class: "soft" }, separation(why, directions.length)),
    ),
  );
}

// Measured on text that the directions do not come from; 0.5 is chance.
function separation(why, n) {
  const others = { random: "random", plain: "without contrast", distance: "distance alone", whole: "the whole score" };
  const beside = Object.entries(others).map(([name, text]) => `${text} ${fixed(why[`auroc_${name}`], 2)}`);
  return `AUROC of attended keys on other text: these ${n} directions ${fixed(why.auroc, 2)}, ${beside.join(", ")}`;
}

const SIDES = {
  reads: "reads from earlier heads",
  feeds: "is read by later heads",
};
const COLUMNS = {
  head: ["head", ""],
  kind: ["through", "through the reader's queries, keys or values"],
  score: ["score", "composition of the two heads' weights, from 0 to 1 (Elhage et al., 2021)"],
  above: ["above chance", "the score minus that of randomly rotated heads"],
  measured_kl: ["measured", "effect of this path at sampled positions, in nats; for the largest pairs"],
};

// Pairs with other heads, from the weights: {reads, feeds}, each a list of rows.
export function compositionPanel({ composition }) {
  const sides = Object.entries(composition ?? {}).filter(([, rows]) => Array.isArray(rows) && rows.length);
  if (!sides.length) return null;
  return panel(
    null,
    section(
      "With whom",
      "composition with other heads, from the weights",
      make(
        "div",
        { class: "two" },
        sides.map(([name, rows]) => make("div", {}, make("h3", {}, SIDES[name] ?? metricName(name)), rowTable(name, rows))),
      ),
    ),
  );
}

function rowTable(name, rows) {
  const isKnown = (key) => rows.some((row) => row[key] !== null && row[key] !== undefined),
    keys = [...new Set(rows.flatMap(Object.keys))].filter(isKnown);
  const isNumber = (key) => rows.some((row) => typeof row[key] === "number");
  const cell = (key, value) => {
    if (isNumber(key)) return make("td", { class: "number" }, value === null ? "–" : rounded(value));
    return make("td", {}, /^\d+\.\d+$/.test(value) ? headLink(value, {}, value) : String(value ?? "–"));
  };
  const title = (key) => {
    const [text, about] = COLUMNS[key] ?? [metricName(key), ""];
    return make(
      "th",
      { scope: "col", class: isNumber(key) ? "number" : "" },
      about ? term(text, about) : text,
    );
  };
  const table = make(
    "table",
    { class: "metrics" },
    make("thead", {}, make("tr", {}, keys.map(title))),
    make("tbody", {}, rows.map((row) => make("tr", {}, keys.map((key) => cell(key, row[key]))))),
  );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": SIDES[name] ?? name },
    table,
  );
}

// Scores have two or three digits that mean something; effects may be very small.
function rounded(value) {
  return brief(Number(value.toPrecision(Math.abs(value) < 0.01 ? 2 : 3)));
}
