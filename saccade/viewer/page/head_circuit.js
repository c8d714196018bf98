// Why a head looks where it looks, and which heads it works with: drawn if they were measured.

import { columnNames, dotted, make, panel } from "./dom.js";
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

// Tables by name, or one list of rows; heads in them are links.
export function compositionPanel({ composition }) {
  const tables = Array.isArray(composition) ? { "": composition } : (composition ?? {});
  const drawn = Object.entries(tables).filter(([, rows]) => Array.isArray(rows) && rows.length);
  if (!drawn.length) return null;
  return panel(
    null,
    section(
      "With whom",
      "composition with other heads",
      drawn.map(([name, rows]) => [name ? make("h3", {}, metricName(name)) : null, rowTable(name, rows)]),
    ),
  );
}

function rowTable(name, rows) {
  const objects = rows.map((row) => (row && typeof row === "object" && !Array.isArray(row) ? row : { value: row })),
    keys = [...new Set(objects.flatMap(Object.keys))];
  const isNumber = (key) => objects.some((row) => typeof row[key] === "number");
  const cell = (key, value) => {
    if (typeof value === "number") return make("td", { class: "number" }, brief(value));
    return make("td", {}, /^\d+\.\d+$/.test(value) ? headLink(value, {}, value) : String(value ?? "–"));
  };
  const table = make(
    "table",
    { class: "metrics" },
    columnNames(keys.map((key) => `${isNumber(key) ? "#" : ""}${metricName(key)}`)),
    make("tbody", {}, objects.map((row) => make("tr", {}, keys.map((key) => cell(key, row[key]))))),
  );
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `composition ${name}`.trim() }, table);
}
