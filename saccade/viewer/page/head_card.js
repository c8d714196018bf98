// One head through every lens, side by side, with the quality of each lens.

import { dotted, make, panel } from "./dom.js";
import { request } from "./api.js";
import { fixed, percent, signed } from "./number_format.js";
import { tokenList } from "./token_list.js";
import { explainedBy, isWeakLens } from "./questions.js";
import { nameOf } from "./heat_map.js";

const NAMES = { unembedding: "Raw unembedding" };

// A card from a reading, for a file without head cards: its lens and the unembedding.
export function cardFromReading(reading, { layer, head }) {
  const found = reading.heads.find((each) => each.layer === layer && each.head === head);
  const attention = new Array(reading.position + 1).fill(0);
  for (const source of found.attends) attention[source.position] = source.weight;
  const raw = {
    name: "unembedding",
    kind: "logit-head",
    method: "",
    kl_from_baseline: null,
    quality: {},
    predicts: [],
    adds: found.unembedded,
    suppresses: [],
    explained: null,
    fidelity: null,
    is_weak: false,
  };
  const own = {
    name: reading.lens ?? "lens",
    kind: "head",
    method: "",
    kl_from_baseline: found.kl_from_baseline,
    quality: found.quality,
    predicts: found.predicts,
    adds: found.adds,
    suppresses: found.suppresses,
    explained: explainedBy(found.quality),
    fidelity: found.quality.ablation ?? null,
    is_weak: isWeakLens(found.quality),
  };
  return {
    layer,
    head,
    model: reading.model,
    position: reading.position,
    tokens: reading.tokens,
    direct: found.direct,
    token: reading.prediction[0],
    lenses: found.unembedded.length ? [raw, own] : [own],
    attention: found.attends.length ? attention : null,
    attends: found.attends,
    entropy: null,
  };
}

export function cardFacts(card) {
  const fact = (name, value) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  const lens = card.lenses.find((each) => each.kl_from_baseline !== null);
  return make(
    "dl",
    { class: "facts" },
    lens
      ? fact(`KL from the baseline (${lens.name})`, `${fixed(lens.kl_from_baseline)} nats`)
      : null,
    card.direct === null
      ? null
      : fact(
          make(
            "span",
            {},
            "direct effect on ",
            make("span", { class: "token" }, dotted(card.token.text)),
          ),
          `${signed(card.direct)} logits`,
        ),
    card.entropy === null ? null : fact("attention entropy", `${fixed(card.entropy)} nats`),
  );
}

export function lensColumns(card) {
  return make("div", { class: "lens-columns" }, card.lenses.map(lensColumn));
}

function lensColumn(lens) {
  const isRaw = lens.name === "unembedding",
    format = (value) => signed(value);
  return make(
    "section",
    { class: `lens${lens.is_weak ? " weak" : ""}`, "data-lens": lens.name },
    make(
      "header",
      {},
      make(
        "h2",
        {},
        NAMES[lens.name] ?? lens.name,
        lens.method && lens.method !== lens.name ? make("small", {}, ` ${lens.method}`) : null,
      ),
      lensQuality(lens, isRaw),
    ),
    make(
      "div",
      { class: "lens-tokens" },
      tokenList(lens.adds, {
        kind: "higher",
        format,
        title: isRaw ? "largest logits" : "more than the baseline (nats)",
        level: "h3",
      }),
      tokenList(lens.suppresses, {
        kind: "lower",
        format,
        title: isRaw ? "smallest logits" : "less than the baseline (nats)",
        level: "h3",
      }),
      lens.predicts.length
        ? tokenList(lens.predicts, {
            format: (value) => percent(value),
            title: "lens predicts",
            level: "h3",
          })
        : null,
    ),
  );
}

// A weak lens must look weak: its tokens are pale, and this line gives the reason.
function lensQuality(lens, isRaw) {
  if (isRaw) return make("p", { class: "lens-quality soft" }, "not truncated, not scored");
  if (lens.explained === null) return make("p", { class: "lens-quality soft" }, "not scored");
  return make(
    "p",
    { class: "lens-quality" },
    make(
      "span",
      { class: "meter", "aria-hidden": "true" },
      make("span", { style: { width: `${Math.max(0, Math.min(100, 100 * lens.explained))}%` } }),
    ),
    make("span", {}, `removes ${percent(lens.explained, 0)} of the KL`),
    lens.fidelity === null ? null : make("span", {}, `fidelity ${signed(lens.fidelity)}`),
    lens.is_weak ? make("b", { class: "badge" }, "weak lens") : null,
  );
}

// Scores of the head for each role, and its rank among all heads.
export async function rolesPanel({ layer, head }) {
  const roles = await request("roles");
  const own = roles.heads.find((each) => each.layer === layer && each.head === head);
  if (!own) return null;
  const names = Object.keys(own).filter((name) => name !== "layer" && name !== "head");
  const rows = names.map((name) => {
    const better = roles.heads.filter((each) => each[name] > own[name]).length,
      most = Math.max(...roles.heads.map((each) => Math.abs(each[name] ?? 0)), 1e-9);
    return make(
      "tr",
      { "data-role": name },
      make("th", { scope: "row" }, name),
      make(
        "td",
        {},
        make(
          "span",
          { class: "meter", "aria-hidden": "true" },
          make("span", { style: { width: `${(100 * Math.max(0, own[name] ?? 0)) / most}%` } }),
        ),
      ),
      make("td", { class: "number" }, fixed(own[name])),
      make(
        "td",
        { class: "number soft" },
        own[name] === null ? "" : `${better + 1} of ${roles.heads.length}`,
      ),
    );
  });
  return panel(
    "Roles",
    make(
      "table",
      { class: "roles" },
      make(
        "thead",
        { class: "visually-hidden" },
        make(
          "tr",
          {},
          ["role", "share of the largest", "score", "rank"].map((name) =>
            make("th", { scope: "col" }, name),
          ),
        ),
      ),
      make("tbody", {}, rows),
    ),
    make(
      "p",
      { class: "note" },
      `Scores of head ${nameOf({ layer, head })} on generated texts, and its rank among all heads.`,
    ),
  );
}
