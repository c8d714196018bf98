// All heads of an atlas: a scatter over any two metrics, and a list of those that a query finds.

import { choice, make, panel } from "./dom.js";
import { scaleOf } from "./colours.js";
import { aboutMetric, axisOf, formatMetric, isLogMetric, metricName } from "./atlas_metrics.js";
import { asyncView } from "./async_view.js";
import { findHeads, finderForm, queryOf } from "./head_finder.js";
import { headLink, openHead } from "./head_link.js";
import { legend } from "./legend.js";
import { brief, percent, whole } from "./number_format.js";
import { scatter } from "./scatter.js";
import { setState } from "./state.js";

const SHOWN = 40; // rows of the list at first

export function atlasOverview(overview) {
  const byName = new Map(overview.heads.map((head) => [head.name, head]));
  const picture = scatter({
    title: `${overview.heads.length} heads of ${overview.model}`,
    onchoose: openHead,
    onpoint: (name) => mark(list, name),
    tip: ({ name }) => tipOf(byName.get(name), axes),
  });
  const controls = make("div", { class: "controls" }),
    colours = make("div"),
    form = make("div"),
    list = asyncView("found-heads");
  const axes = { x: "", y: "", colour: "" };
  const node = make(
    "div",
    { class: "atlas-columns" },
    panel(
      null,
      make("div", { class: "panel-head" }, make("h1", {}, `Atlas of ${overview.model}`), controls),
      picture,
      colours,
      make("p", { class: "note" }, provenance(overview)),
    ),
    panel("Find heads", form, list),
  );
  list.addEventListener("pointerover", (event) => pointAt(picture, event));
  list.addEventListener("focusin", (event) => pointAt(picture, event));
  list.addEventListener("keydown", stepThroughRows);

  function drawPoints() {
    const values = (name) => overview.heads.map((head) => head[name] ?? NaN);
    const isLog = isLogMetric(axes.colour),
      shades = values(axes.colour).map((value) => (isLog ? Math.log10(Math.max(value, 1e-6)) : value));
    const known = shades.filter(Number.isFinite);
    const isTwoWay = known.some((value) => value < 0) && !isLog;
    const scale = scaleOf(known, { signed: isTwoWay, low: isTwoWay ? null : Math.min(...known) });
    const axis = (name) => ({
      name: `${metricName(name)}${isLogMetric(name) ? " (logarithmic)" : ""}`,
      axis: axisOf(name, values(name)),
    });
    picture.show({
      x: axis(axes.x),
      y: axis(axes.y),
      scale,
      points: overview.heads.map((head, at) => ({
        name: head.name,
        x: head[axes.x] ?? NaN,
        y: head[axes.y] ?? NaN,
        value: shades[at],
        label: describe(head, axes),
      })),
    });
    const format = (value) => formatMetric(axes.colour, isLog ? 10 ** value : value);
    colours.replaceChildren(legend(scale, format, aboutMetric(axes.colour)));
  }
  function fillForm(state) {
    form.dataset.of = state.find;
    if (form.querySelector("input:focus, select:focus")) return; // what is typed stays
    const hadFocus = form.contains(document.activeElement);
    const ask = (find) => setState({ find }, { isStep: true });
    const onquery = (find) => {
      form.dataset.of = find; // the form shows it already, and the next field may have the focus by now
      ask(find);
    };
    form.replaceChildren(finderForm(overview, queryOf(state), { onquery, onclear: () => ask("") }));
    if (hadFocus) form.querySelector("input").focus();
  }
  return {
    node,
    update(state) {
      for (const [key, fallback] of [["x", "distance"], ["y", "kl"], ["colour", "layer"]])
        axes[key] = overview.metrics.includes(state[key]) ? state[key] : fallback;
      const chosen = JSON.stringify(axes);
      if (controls.dataset.of !== chosen) controls.replaceChildren(...axisChoices(overview, axes));
      controls.dataset.of = chosen;
      if (form.dataset.of !== state.find) fillForm(state);
      drawPoints();
      list.fill(state.find, async () => {
        picture.show({ found: null });
        const found = await findHeads(overview, queryOf(state));
        picture.show({ found: found && new Set(found.rows.map(({ name }) => name)) });
        return drawList(byName, found);
      });
    },
  };
}

function provenance({ positions, tokens, sources, replaced_by: by }) {
  return (
    `Effects at ${whole(positions)} positions of ${whole(tokens)} tokens of ${sources.join(", ")}; ` +
    `a head is replaced by ${by === "zero" ? "zero" : "its mean"}.`
  );
}

function axisChoices({ metrics }, axes) {
  const names = metrics.map((name) => [name, metricName(name)]);
  return [
    ["x", "across "],
    ["y", "up "],
    ["colour", "coloured by "],
  ].map(([key, label]) =>
    make(
      "label",
      { class: "inline" },
      label,
      choice(names, axes[key], (name) => setState({ [key]: name }), label.trim()),
    ),
  );
}

function describe(head, axes) {
  const values = Object.values(axes).map((name) => `${metricName(name)} ${formatMetric(name, head[name])}`);
  return `head ${head.name}: ${[...new Set(values)].join(", ")}; ${head.label}`;
}

function tipOf(head, axes) {
  return [
    make("b", {}, `head ${head.name}`),
    make("p", {}, head.label),
    ...new Set(Object.values(axes)),
  ].map((each) =>
    typeof each === "string"
      ? make("p", { class: "number" }, `${metricName(each)} ${formatMetric(each, head[each])}`)
      : each,
  );
}

function pointAt(picture, event) {
  const row = event.target.closest("[data-head]");
  if (row) picture.point(row.dataset.head);
}

// Arrow keys, or j and k, go from head to head of the list; Enter opens one, as any link.
function stepThroughRows(event) {
  const by = { ArrowUp: -1, ArrowDown: 1, k: -1, j: 1 }[event.key],
    row = event.target.closest("li");
  if (!by || !row || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  (by > 0 ? row.nextElementSibling : row.previousElementSibling)?.querySelector("a")?.focus();
}

function mark(list, name) {
  for (const row of list.querySelectorAll(".is-pointed")) row.classList.remove("is-pointed");
  list.querySelector(`[data-head="${name}"]`)?.classList.add("is-pointed");
}

function drawList(byName, found) {
  const all =
    found?.rows ??
    [...byName.values()].sort((a, b) => b.kl - a.kl).map(({ name, kl }) => ({ name, value: kl }));
  const what = found ? found.what : "mean effect in nats",
    format = (value) => (what.startsWith("share") ? percent(value, 2) : brief(Number(value.toPrecision(3))));
  const rows = make("ol", { class: "ranking atlas-list" });
  const more = make("button", { type: "button", class: "quiet", onclick: () => add(all.length) });
  function add(most) {
    const from = rows.childElementCount;
    rows.append(...all.slice(from, most).map(({ name, value }) => headRow(byName.get(name), format(value))));
    more.textContent = `Show all ${all.length}`;
    more.hidden = rows.childElementCount >= all.length;
    if (from) rows.children[from]?.querySelector("a")?.focus();
  }
  add(SHOWN);
  const count = `${all.length} ${all.length === 1 ? "head" : "heads"}`;
  return [
    make("p", { class: "note", role: "status" }, all.length ? `${count}, by ${what}` : "No head is found."),
    rows,
    more,
  ];
}

function headRow(head, value) {
  return make(
    "li",
    {},
    headLink(
      head.name,
      { "data-head": head.name },
      make("span", { class: "name" }, head.name),
      make("span", { class: "words" }, head.label),
      make("span", { class: "number" }, value),
    ),
  );
}
