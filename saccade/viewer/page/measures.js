// The measures of a head map, and the fields that each needs.

import { choice, dotted, make } from "./dom.js";
import { request, hasAnswer, isOffline } from "./api.js";
import { fixed, percent, signed } from "./number_format.js";
import { nameOf } from "./heat_map.js";
import { explainedBy, measureQuestion, partsOf } from "./questions.js";
import { tokenText } from "./chosen_tokens.js";
import { debounced } from "./async_view.js";
import { setState } from "./state.js";
import { getStatus, watchJob } from "./status.js";

const MEASURES = [
  ["effect", "effect"],
  ["token", "effect on the token's logit"],
  ["direct", "direct effect on the token's logit"],
  ["lens", "KL of the lens from the baseline"],
  ["agreement", "agreement of the lens with the effect"],
  ["gain", "lens gain on held-out text"],
  ["fidelity", "fidelity of the lens"],
  ["mass", "probability mass on a word list"],
  ["entropy", "attention entropy"],
];
const ON_TOKEN = ["token", "direct"];
const OF_EFFECT = ["effect", ...ON_TOKEN];
const FROM_READING = {
  effect: { unit: "nats", of: ({ effect }) => effect?.kl },
  token: { unit: "logits", isTwoWay: true, of: ({ effect }) => effect?.on_token },
  direct: { unit: "logits", isTwoWay: true, of: ({ effect }) => effect?.direct },
  lens: { unit: "nats", of: ({ lens }) => lens?.kl_from_baseline },
  agreement: { unit: "correlation", isTwoWay: true, of: ({ effect }) => effect?.lens_agreement },
  gain: { unit: "of the KL", of: ({ lens }) => lens && explainedBy(lens.quality) },
  fidelity: { unit: "correlation", isTwoWay: true, of: ({ lens }) => lens?.quality.ablation },
};
const REPLACED_BY = {
  mean: "its mean",
  zero: "zero",
  resample: "its value at a random token",
  prompt: "its value in another prompt",
};

export function replacedBy(reading) {
  return REPLACED_BY[reading.replaced_by] ?? "its mean";
}

function labelOf(measure, reading) {
  const on = reading.target && dotted(reading.target.text),
    other = reading.against ? dotted(reading.against.text) : "the mean logit";
  return {
    effect: `KL of the prediction with the head from that with ${replacedBy(reading)}, in nats`,
    token: `fall of the logit of ${on}, against ${other}, with ${replacedBy(reading)} in place of the head`,
    direct: `part of the effect on the logit of ${on}, against ${other}, that reaches it directly`,
    lens: "KL from the baseline lens, in nats",
    agreement: "correlation of the change that the lens predicts with the measured change",
    gain: "share of the baseline lens's KL that the lens removes",
    fidelity: "correlation of the lens prediction with the effect of ablating the head, over a text",
  }[measure];
}

// The measure of the state, or the first that the reading has.
function measureIn(state, reading) {
  const isThere = ([name]) => isKnown(name, reading, state);
  return (MEASURES.find((each) => each[0] === state.measure && isThere(each)) ??
    MEASURES.find(isThere))[0];
}

function isKnown(measure, reading, state) {
  const own = FROM_READING[measure];
  if (own) return partsOf(reading).some((part) => (own.of(part) ?? null) !== null);
  if (measure === "mass" && reading.lens === null) return false;
  return hasAnswer("measure", measureQuestion({ ...state, measure }));
}

// The values of a map: {measure, label, unit, isTwoWay, values: Map(name -> value)}.
export async function measured(state, reading, onjob) {
  const measure = measureIn(state, reading),
    own = FROM_READING[measure];
  if (own) {
    const valued = partsOf(reading).map((part) => [nameOf(part), own.of(part) ?? null]);
    const values = new Map(valued.filter(([, value]) => value !== null));
    return { ...own, measure, label: labelOf(measure, reading), values };
  }
  const answer = await watchJob(request("measure", measureQuestion({ ...state, measure })), onjob);
  const values = new Map(
    answer.rows.flatMap(({ layer, values: row }) =>
      row.map((value, head) => [`${layer}.${head}`, value]),
    ),
  );
  return { measure, label: answer.label, unit: answer.unit, isTwoWay: answer.is_two_way, values };
}

// What a head promotes (effects) or its lens predicts more than the baseline.
export function shownTokens({ effect, lens }, measure) {
  if (effect && OF_EFFECT.includes(measure))
    return { name: "promotes", tokens: effect.promotes, lower: effect.suppresses };
  if (lens) return { name: "more than the baseline", tokens: lens.adds, lower: lens.suppresses };
  return { name: "promotes", tokens: effect?.promotes ?? [], lower: effect?.suppresses ?? [] };
}

export function formatOf(found) {
  if (found.measure === "gain") return (value) => percent(value, 0);
  if (found.measure === "mass")
    return (value) => (value === null ? "–" : `${signed(100 * value, 2)}%`);
  const digits = OF_EFFECT.includes(found.measure) ? 3 : 2; // most effects are small
  return found.isTwoWay ? (value) => signed(value, digits) : (value) => fixed(value, digits);
}

export function titleOf({ layer, head, kind }) {
  if (head !== null && head !== undefined) return `Layer ${layer}, head ${head}`;
  if (kind === "attention") return `Attention of layer ${layer}, all heads`;
  if (kind === "feed-forward") return `MLP of layer ${layer}`;
  return `Residual stream after layer ${layer}`;
}

// The choice of a measure, and the fields that this one needs. Without a reading yet: the chosen one only.
export function measureControls(state, reading) {
  const chosen = reading ? measureIn(state, reading) : state.measure;
  const offered = MEASURES.filter(
    ([name]) => name === chosen || (reading && isKnown(name, reading, state)),
  );
  const node = make(
    "div",
    { class: "controls" },
    make(
      "label",
      { class: "inline" },
      "coloured by ",
      choice(offered, chosen, (measure) => choose(state, measure), "measure"),
    ),
  );
  if (ON_TOKEN.includes(chosen))
    node.append(
      tokenField(state, "token", "of the token", "as predicted"),
      tokenField(state, "against", "against", "the mean logit"),
    );
  if (OF_EFFECT.includes(chosen) && !isOffline()) node.append(ablationChoice(state));
  if (chosen === "mass") node.append(listField(state));
  return node;
}

function choose(state, measure) {
  const words = getStatus()?.word_lists?.[0] ?? "he,she";
  setState({ measure, ...(measure === "mass" && !state.words ? { words } : {}) });
}

function ablationChoice(state) {
  const options = [
    ["mean", "its mean"],
    ["zero", "zero"],
  ];
  return make(
    "label",
    { class: "inline" },
    "replaced by ",
    choice(options, state.ablate, (ablate) => setState({ ablate }), "replaced by"),
  );
}

export function tokenField(state, key, label, placeholder, size = 12) {
  const later = debounced((value) => setState({ [key]: value }), 600);
  const box = make("input", {
    type: "text",
    size,
    placeholder,
    value: tokenText(state[key]),
    "aria-label": label,
    spellcheck: "false",
    readonly: isOffline(),
    oninput: () => later(box.value),
    onchange: () => later.now(box.value),
  });
  return make("label", { class: "inline" }, `${label} `, box);
}

function listField(state) {
  const later = debounced((words) => words.trim() && setState({ words }), 600);
  const names = make(
    "datalist",
    { id: "word-lists" },
    (getStatus()?.word_lists ?? []).map((value) => make("option", { value })),
  );
  const box = make("input", {
    type: "text",
    list: "word-lists",
    size: 16,
    value: state.words,
    "aria-label": "words",
    oninput: () => later(box.value),
    onchange: () => later.now(box.value),
  });
  return make("label", { class: "inline" }, "words ", box, names);
}
