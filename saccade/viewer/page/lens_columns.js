// What the activation of one head knows: the prediction of each lens, side by side, with its quality.

import { make } from "./dom.js";
import { fixed, percent, signed } from "./number_format.js";
import { section } from "./head_card.js";
import { tokenList } from "./token_list.js";
import { term } from "./tooltip.js";
import { explainedBy, isWeakLens } from "./questions.js";

const NAMES = { unembedding: "Raw unembedding" };

// A card from a part of a reading, where no answer of its own is there: its lens and the unembedding.
export function cardFromReading(reading, part) {
  const attention = new Array(reading.position + 1).fill(0);
  for (const source of part.attends) attention[source.position] = source.weight;
  const common = { method: "", agreement: null };
  const raw = part.unembedded.length && {
    ...common,
    name: "unembedding",
    kl_from_baseline: null,
    predicts: [],
    adds: part.unembedded,
    suppresses: [],
    explained: null,
    fidelity: null,
    is_weak: false,
  };
  const own = part.lens && {
    ...common,
    ...part.lens,
    name: reading.lens ?? "lens",
    explained: explainedBy(part.lens.quality),
    fidelity: part.lens.quality.ablation ?? null,
    is_weak: isWeakLens(part.lens.quality),
    agreement: part.effect?.lens_agreement ?? null,
  };
  return {
    layer: part.layer,
    head: part.head,
    position: reading.position,
    tokens: reading.tokens,
    lenses: [raw, own].filter(Boolean),
    attention: part.attends.length ? attention : null,
    attends: part.attends,
    entropy: null,
  };
}

// What its activation knows: the prediction of each lens.
export function knowsSection(card, isLensed = true) {
  const none = "No lens is fitted for this head: `saccade lens fit` fits one.";
  if (!isLensed) return null;
  if (!card.lenses.length) return section("Knows", "fitted", make("p", { class: "note" }, none));
  return section(
    "Knows",
    "fitted: what a lens predicts from its activation",
    make("div", { class: "lens-columns" }, card.lenses.map(lensColumn)),
  );
}

function lensColumn(lens) {
  const isRaw = lens.name === "unembedding";
  const list = (tokens, title, kind = "", format = (value) => signed(value)) =>
    tokenList(tokens, { kind, format, title, level: "h4" });
  return make(
    "section",
    { class: `lens${lens.is_weak ? " weak" : ""}`, "data-lens": lens.name },
    make(
      "header",
      {},
      make(
        "h3",
        {},
        NAMES[lens.name] ?? lens.name,
        lens.method && lens.method !== lens.name ? make("small", {}, ` ${lens.method}`) : null,
      ),
      isRaw
        ? make("p", { class: "lens-quality soft" }, "not truncated, not scored")
        : [lensQuality(lens), lensHere(lens)],
    ),
    make(
      "div",
      { class: "lens-tokens" },
      list(lens.adds, isRaw ? "largest logits" : "more than the baseline (nats)", "higher"),
      list(lens.suppresses, isRaw ? "smallest logits" : "less than the baseline (nats)", "lower"),
      lens.predicts.length ? list(lens.predicts, "lens predicts", "", (p) => percent(p)) : null,
    ),
  );
}

// A weak lens must look weak: its tokens are pale, and this line gives the reason.
function lensQuality(lens) {
  if (lens.explained === null) return make("p", { class: "lens-quality soft" }, "not scored");
  return make(
    "p",
    { class: "lens-quality" },
    make(
      "span",
      { class: "meter", "aria-hidden": "true" },
      make("span", { style: { width: `${Math.max(0, Math.min(100, 100 * lens.explained))}%` } }),
    ),
    term(
      `removes ${percent(lens.explained, 0)} of the KL`,
      "held-out quality: (KL(model ‖ baseline lens) − KL(model ‖ lens)) / KL(model ‖ baseline lens), over held-out text",
    ),
    lens.fidelity === null
      ? null
      : term(
          `fidelity ${signed(lens.fidelity)}`,
          "correlation of the change that the lens predicts with the effect of ablating the head, over a text",
        ),
    lens.is_weak ? make("b", { class: "badge" }, "weak lens") : null,
  );
}

// What the lens is worth at this position.
function lensHere(lens) {
  return make(
    "p",
    { class: "lens-quality" },
    term(
      `KL ${fixed(lens.kl_from_baseline)} nats`,
      "KL of the prediction of the lens here from that of the baseline lens, which is the same for every text, in nats",
    ),
    lens.agreement === null
      ? null
      : term(
          `agrees with the effect ${signed(lens.agreement)}`,
          "correlation over tokens of the change that the lens predicts with the measured change, here; tokens weighted " +
            "by their probability",
        ),
  );
}
