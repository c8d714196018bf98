// The questions of a state, written once, so that two screens send the same question.

import { changesOf } from "./state.js";

export function aboutText(state) {
  return { text: state.text, changes: changesOf(state) };
}

export function readingQuestion(state) {
  const { at, lens, token, against, ablate } = state;
  return { ...aboutText(state), position: Number(at), lens, token, against, ablate };
}

export function measureQuestion(state) {
  const { at, lens, measure, words } = state,
    question = { ...aboutText(state), position: Number(at), measure };
  if (measure === "mass") Object.assign(question, { words, lens });
  return question;
}

export function headQuestion(state, { layer, head }) {
  return { ...aboutText(state), position: Number(state.at), layer, head };
}

// "29.0" -> {layer: 29, head: 0}; "29.feed-forward" -> that part; "29" -> the residual stream; anything else -> null.
export function headNamed(name) {
  const found = /^(\d+)(?:\.(\d+|attention|feed-forward))?$/.exec(name);
  if (!found) return null;
  const layer = Number(found[1]),
    head = Number(found[2] ?? NaN);
  return Number.isNaN(head)
    ? { layer, head: null, kind: found[2] ?? "residual" }
    : { layer, head, kind: "head" };
}

// All parts of a reading: heads, then attention layers, MLPs and residual streams.
export function partsOf(reading) {
  return [...reading.heads, ...reading.others];
}

export function partNamed(reading, { layer, head, kind }) {
  return partsOf(reading).find(
    (each) => each.layer === layer && each.head === head && each.kind === (kind ?? "head"),
  );
}

// The share of the baseline lens's KL that a lens removes on held-out text.
export function explainedBy(quality) {
  if (quality.kl === undefined || quality.gain === undefined) return null;
  const baseline = quality.kl + quality.gain;
  return baseline > 0 ? quality.gain / baseline : 0;
}

const WEAK = 0.02; // as on the command line

export function isWeakLens(quality) {
  const explained = explainedBy(quality);
  return explained !== null && explained < WEAK;
}

export function hasWeakLens({ lens }) {
  return lens !== null && isWeakLens(lens.quality);
}
