// The questions of a state, written once, so that two screens send the same question.

import { changesOf } from "./state.js";

export function aboutText(state) {
  return { text: state.text, changes: changesOf(state) };
}

export function readingQuestion(state) {
  return { ...aboutText(state), position: Number(state.at), lens: state.lens };
}

export function measureQuestion(state) {
  const question = { ...readingQuestion(state), measure: state.measure };
  if (["direct", "effect"].includes(state.measure))
    Object.assign(question, { token: state.token, against: state.against });
  if (state.measure === "effect") question.ablate = state.ablate;
  if (state.measure === "mass") question.words = state.words;
  return question;
}

export function headQuestion(state, { layer, head }) {
  return { ...aboutText(state), position: Number(state.at), layer, head };
}

// "29.0" -> {layer: 29, head: 0}; "29" -> the residual stream; anything else -> null.
export function headNamed(name) {
  const found = /^(\d+)(?:\.(\d+))?$/.exec(name);
  return (
    found && { layer: Number(found[1]), head: found[2] === undefined ? null : Number(found[2]) }
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
