// Quality of the lenses, head by head, and their provenance.

import { choice, columnNames, make, panel } from "./dom.js";
import { request } from "./api.js";
import { scaleOf } from "./colours.js";
import { brief, percent, signed, whole } from "./number_format.js";
import { titleOf } from "./measures.js";
import { heatMap } from "./heat_map.js";
import { legend } from "./legend.js";
import { empty, asyncView } from "./async_view.js";
import { setState } from "./state.js";
import { isReady } from "./status.js";

export function lensesScreen() {
  const main = asyncView("lenses", { waiting: "Waiting for the lenses…" });
  const node = make(
    "div",
    { class: "screen screen-lenses" },
    make("h1", { class: "visually-hidden" }, "Lenses"),
    main,
  );
  return {
    node,
    update: (state) =>
      main.fill(`${state.map} ${isReady()}`, async () => draw(state, await request("lenses"))),
  };
}

function draw(state, lenses) {
  if (!lenses.length)
    return empty(
      "There are no lenses yet.",
      make("p", { class: "hint" }, make("code", {}, "saccade lens fit"), " fits some."),
    );
  const names = [...new Set(lenses.flatMap((lens) => lens.measures.map((each) => each.measure)))];
  const wanted = state.map.split(":").pop(),
    measure = names.includes(wanted) ? wanted : names[0];
  const found = lenses.map((lens) => ({
    lens,
    measured: lens.measures.find((each) => each.measure === measure),
  }));
  const values = found.flatMap(({ measured }) => measured?.rows.flatMap((row) => row.values) ?? []);
  const known = values.filter((value) => value !== null),
    isTwoWay = found.some(({ measured }) => measured?.is_two_way);
  // One scale for all lenses, so that colours can be compared.
  const scale = scaleOf(known, { signed: isTwoWay, low: isTwoWay ? null : Math.min(...known) });
  const label = found.find(({ measured }) => measured)?.measured.label ?? "";
  return [
    comparison(lenses, names),
    panel(
      null,
      make(
        "div",
        { class: "panel-head" },
        make("h2", {}, "Head by head"),
        make(
          "div",
          { class: "controls" },
          make(
            "label",
            { class: "inline" },
            "coloured by ",
            choice(
              names.map((name) => [name, name]),
              measure,
              (name) => setState({ map: `${lenses[0].name}:${name}` }),
              "measure",
            ),
          ),
        ),
      ),
      make("p", { class: "note" }, `${label[0]?.toUpperCase() ?? ""}${label.slice(1)}.`),
      legend(scale, formatFor(measure), ""),
      make(
        "div",
        { class: "maps" },
        found.map(({ lens, measured }) => (measured ? lensMap(lens, measured, scale) : null)),
      ),
    ),
    make("div", { class: "two" }, lenses.map(provenance)),
  ];
}

function formatFor(measure) {
  return measure === "explained"
    ? (value) => percent(value, 0)
    : ["ablation", "alignment"].includes(measure)
      ? (value) => signed(value)
      : (value) => brief(value);
}

function lensMap(lens, measured, scale) {
  const format = formatFor(measured.measure);
  const cells = measured.rows.flatMap(({ layer, values }) =>
    values.map((value, head) => {
      const site = { layer, head: lens.site === "residual" ? null : head };
      return {
        ...site,
        value: value ?? NaN,
        isWeak: false,
        label: `${titleOf(site)}: ${format(value)}`,
      };
    }),
  );
  const map = heatMap({
    cells,
    scale,
    title: `${lens.name}, ${measured.measure}`,
    tip: (cell) => [
      make("b", {}, titleOf(cell)),
      make("p", { class: "number" }, format(cell.value)),
    ],
  });
  return make(
    "figure",
    { class: "picture", "data-lens": lens.name },
    make("figcaption", {}, make("b", {}, lens.name), ` mean ${format(measured.mean)}`),
    map,
  );
}

function comparison(lenses, names) {
  const best = Object.fromEntries(names.map((name) => [name, bestOf(lenses, name)]));
  const rows = lenses.map((lens) =>
    make(
      "tr",
      { "data-lens": lens.name },
      make("th", { scope: "row" }, lens.name),
      make("td", {}, lens.kind),
      make("td", {}, lens.method),
      make("td", { class: "number" }, whole(lens.n_tokens)),
      names.map((name) => {
        const mean = lens.measures.find((each) => each.measure === name)?.mean ?? null;
        return make(
          "td",
          { class: `number${mean !== null && mean === best[name] ? " strong" : ""}` },
          mean === null ? "–" : formatFor(name)(mean),
        );
      }),
    ),
  );
  return panel(
    "Lenses compared",
    make(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lenses compared" },
      make(
        "table",
        { class: "metrics" },
        columnNames(["lens", "kind", "method", "#tokens", ...names.map((name) => `#${name}`)]),
        make("tbody", {}, rows),
      ),
    ),
    make(
      "p",
      { class: "note" },
      "Means over all heads, on held-out text; the best of each column is bold.",
    ),
  );
}

function bestOf(lenses, name) {
  const means = lenses
    .map((lens) => lens.measures.find((each) => each.measure === name)?.mean)
    .filter((mean) => mean !== undefined && mean !== null);
  return lenses.length < 2 ? null : name === "kl" ? Math.min(...means) : Math.max(...means);
}

function provenance(lens) {
  const rows = [
    ["kind", `${lens.kind} (${lens.site})`],
    ["method", lens.method],
    ["objective", lens.objective],
    ["fitted on", lens.corpus],
    ["tokens", whole(lens.n_tokens)],
    ["seed", String(lens.seed)],
    ["for the model", lens.model_fingerprint],
    ...Object.entries(lens.settings).map(([name, value]) => [
      name,
      Array.isArray(value) ? value.join(", ") || "all" : String(value),
    ]),
    ...Object.entries(lens.versions),
  ];
  return panel(
    lens.name,
    make(
      "dl",
      { class: "about" },
      rows
        .filter(([, value]) => value !== "")
        .map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
    ),
  );
}
