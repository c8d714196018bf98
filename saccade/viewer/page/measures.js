// The measures of a head map, and the fields that each needs.

import { choice, make } from "./dom.js";
import { request, hasAnswer, isOffline } from "./api.js";
import { fixed, percent, signed } from "./number_format.js";
import { nameOf } from "./heat_map.js";
import { explainedBy, measureQuestion } from "./questions.js";
import { debounced } from "./async_view.js";
import { setState } from "./state.js";
import { getStatus, watchJob } from "./status.js";

const MEASURES = [
  ["lens", "KL of the lens from the baseline"],
  ["gain", "lens gain on held-out text"],
  ["direct", "direct effect on a token's logit"],
  ["effect", "effect of ablation"],
  ["mass", "probability mass on a word list"],
  ["entropy", "attention entropy"],
  ["fidelity", "fidelity of the lens"],
];
const FROM_READING = {
  lens: {
    label: "KL from the baseline lens, in nats",
    unit: "nats",
    of: (head) => head.kl_from_baseline,
  },
  gain: {
    label: "share of the baseline lens's KL that the lens removes",
    unit: "of the KL",
    of: (head) => explainedBy(head.quality),
  },
  fidelity: {
    label: "correlation of the lens prediction with the effect of ablating the head",
    unit: "correlation",
    of: (head) => head.quality.ablation ?? null,
  },
};

// The values of a map: {label, unit, isTwoWay, values: Map(name -> value), token}.
export async function measured(state, reading, onjob) {
  const own = FROM_READING[state.measure];
  if (own)
    return {
      ...own,
      isTwoWay: state.measure === "fidelity",
      values: new Map(reading.heads.map((head) => [nameOf(head), own.of(head)])),
    };
  const question = measureQuestion(state);
  if (state.measure === "direct" && !state.token && !hasAnswer("measure", question))
    return {
      label: "direct effect on the logit of the predicted token",
      unit: "logits",
      isTwoWay: true,
      values: new Map(reading.heads.map((head) => [nameOf(head), head.direct])),
    };
  const answer = await watchJob(request("measure", question), onjob);
  const values = new Map(
    answer.rows.flatMap(({ layer, values: row }) =>
      row.map((value, head) => [`${layer}.${head}`, value]),
    ),
  );
  return {
    label: answer.label,
    unit: answer.unit,
    isTwoWay: answer.is_two_way,
    values,
    token: answer.token,
    against: answer.against,
  };
}

export function formatOf(state, found) {
  if (state.measure === "gain") return (value) => percent(value, 0);
  if (state.measure === "mass")
    return (value) => (value === null ? "–" : `${signed(100 * value, 2)}%`);
  return found.isTwoWay ? (value) => signed(value) : (value) => fixed(value);
}

export function titleOf({ layer, head }) {
  return head === null || head === undefined
    ? `Residual stream after layer ${layer}`
    : `Layer ${layer}, head ${head}`;
}

// The choice of a measure, and the fields that this one needs.
export function measureControls(state) {
  const isThere = (measure) =>
    FROM_READING[measure] ||
    measure === "direct" ||
    hasAnswer("measure", measureQuestion({ ...state, measure }));
  const offered = MEASURES.filter(([name]) => name === state.measure || isThere(name));
  const node = make(
    "div",
    { class: "controls" },
    make(
      "label",
      { class: "inline" },
      "coloured by ",
      choice(
        offered,
        state.measure,
        (measure) =>
          setState({
            measure,
            ...(measure === "mass" && !state.words
              ? { words: getStatus()?.word_lists?.[0] ?? "he,she" }
              : {}),
          }),
        "measure",
      ),
    ),
  );
  if (["direct", "effect"].includes(state.measure))
    node.append(
      tokenField(state, "token", "of the token", "as predicted"),
      tokenField(state, "against", "against", "the mean logit"),
    );
  if (state.measure === "effect")
    node.append(
      make(
        "label",
        { class: "inline" },
        "replaced by ",
        choice(
          [
            ["zero", "zero"],
            ["mean", "its mean"],
          ],
          state.ablate,
          (ablate) => setState({ ablate }),
          "replaced by",
        ),
      ),
    );
  if (state.measure === "mass") node.append(listField(state));
  return node;
}

export function tokenField(state, key, label, placeholder, size = 12) {
  const later = debounced((value) => setState({ [key]: value }), 600);
  const box = make("input", {
    type: "text",
    size,
    placeholder,
    value: state[key],
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
