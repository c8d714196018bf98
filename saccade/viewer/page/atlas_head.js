// The page of a head in the atlas: its label, what it does, knows and looks at over a text, its roles.

import { make, panel } from "./dom.js";
import { aboutMetric, formatMetric, GROUPS, metricName } from "./atlas_metrics.js";
import { contextStepper } from "./head_context.js";
import { fact, section } from "./head_card.js";
import { compositionPanel, whyPanel } from "./head_circuit.js";
import { sequenceStepper } from "./head_sequence.js";
import { histogram } from "./histogram.js";
import { titleOf } from "./measures.js";
import { brief, percent, whole } from "./number_format.js";
import { tokenList } from "./token_list.js";

export function atlasHead(page) {
  const contexts = contextStepper(page);
  const node = make(
    "div",
    { class: "atlas-head" },
    panel(null, head(page), labelOf(page)),
    panel(null, doesSection(page, contexts)),
    panel(null, looksSection(page)),
    make("div", { class: "two" }, knowsPanel(page), whyPanel(page), rolesPanel(page), compositionPanel(page)),
    page.looks.sequences.length ? panel("Sampled sequences", sequenceStepper(page)) : null,
  );
  return { node, update: (state) => contexts?.to(Number(state.context) || 0) };
}

function head(page) {
  return make(
    "div",
    { class: "panel-head" },
    make("h1", {}, titleOf(page)),
    make("span", { class: "soft" }, page.model),
  );
}

function labelOf({ label }) {
  const facts = label.facts.map(({ phrase, rate, average }) =>
    make(
      "li",
      {},
      make("b", {}, phrase),
      make("span", { class: "soft" }, ` in ${percent(rate, 0)} of its effect, average ${percent(average, 0)}`),
    ),
  );
  return make(
    "ul",
    { class: "label-facts" },
    facts,
    make("li", {}, label.matters ? `matters in ${percent(label.matters)} of positions` : "never matters"),
  );
}

function metricFacts(metrics, names) {
  const known = names.filter((name) => metrics[name] !== null && metrics[name] !== undefined);
  return make(
    "dl",
    { class: "facts" },
    known.map((name) => fact(metricName(name), aboutMetric(name), formatMetric(name, metrics[name]))),
  );
}

function doesSection({ does, metrics, name }, contexts) {
  return section(
    "Does",
    "measured: the prediction with the head and without it",
    metricFacts(metrics, GROUPS.effect),
    make(
      "div",
      { class: "two lists" },
      shares("promotes", does.promotes, "higher"),
      shares("suppresses", does.suppresses, "lower"),
    ),
    contexts ? [make("h3", {}, "Contexts, from its strongest to those without effect"), contexts] : null,
    make("h3", {}, "How large its effect is"),
    histogram({
      title: `Effects of head ${name}`,
      unit: "effect at a position, in nats",
      bins: effectBins(does.histogram),
    }),
  );
}

function effectBins({ bounds, share }) {
  const named = (value) => (value < 0.01 ? value.toExponential(0).replace("-", "−") : brief(value));
  return share.map((each, at) => ({
    share: each,
    name: at ? `>${named(bounds[at - 1])}` : `≤${named(bounds[0])}`,
  }));
}

// Tokens with their share of the effect, and the average share over all heads.
function shares(title, tokens, kind) {
  const listed = tokens.map(({ text, share, average, positions }) => ({
    text,
    value: share,
    note: `average ${percent(average)}, at ${whole(positions)} positions`,
  }));
  return tokenList(listed, { kind, format: (value) => percent(value), title: `${title} (share of its effect)` });
}

function knowsPanel({ knows, metrics }) {
  if (!knows) return null;
  return panel(
    null,
    section(
      "Knows",
      "the prediction of its lens",
      metricFacts(metrics, GROUPS.lens),
      shares("predicts", knows.predicts, ""),
    ),
  );
}

function looksSection({ looks, metrics, name }) {
  const tokens = (title, list, format) =>
    tokenList(
      list.map(({ text, weight, occurrences }) => ({ text, value: weight, note: `${whole(occurrences)}×` })),
      { format, title },
    );
  return section(
    "Looks",
    "its attention over the text",
    metricFacts(metrics, GROUPS.look),
    make("h3", {}, "How far back"),
    histogram({
      title: `Distances of head ${name}`,
      unit: "distance in tokens",
      bins: distanceBins(looks.distance),
    }),
    make(
      "div",
      { class: "two lists" },
      tokens("keys (attention that an occurrence gets, in all)", looks.key_tokens, (value) => brief(Number(value.toPrecision(3)))),
      tokens("queries (attention to other than the first position)", looks.query_tokens, (value) => percent(value)),
    ),
  );
}

// 0, 1, 2, then ranges that double: 3-4, 5-8, 9-16.
function distanceBins(distance) {
  const bins = [];
  for (let first = 0, last = 0; first < distance.length; first = last + 1) {
    last = first < 3 ? first : 2 * (first - 1);
    const share = distance.slice(first, last + 1).reduce((sum, each) => sum + each, 0);
    const end = Math.min(last, distance.length - 1);
    bins.push({ share, name: end > first ? `${first}–${end}` : String(first) });
  }
  return bins;
}

function rolesPanel({ roles }) {
  const names = Object.keys(roles);
  if (!names.length) return null;
  const rows = names.map((name) =>
    make(
      "tr",
      { "data-role": name },
      make("th", { scope: "row" }, metricName(name)),
      make("td", { class: "number" }, brief(roles[name])),
    ),
  );
  return panel(
    null,
    section(
      "Roles",
      "scores of published tests",
      make("table", { class: "roles" }, make("tbody", {}, rows)),
    ),
  );
}
