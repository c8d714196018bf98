// How the model writes: a temperature and a seed, as fields and as a part of the question.

import { make } from "./dom.js";
import { setState } from "./state.js";

const HOTTEST = 2, // temperature, as on the server
  LAST_SEED = 2 ** 31 - 1;

// Without a temperature the seed makes no difference, so it is left out of the question.
export function questionAt({ text, temperature: given, seed }, index) {
  const temperature = numberIn(given, HOTTEST);
  return temperature
    ? { text, index, temperature, seed: Math.floor(numberIn(seed, LAST_SEED)) }
    : { text, index };
}

export function isSampled({ temperature }) {
  return numberIn(temperature, HOTTEST) > 0;
}

// The number that a field or a link has, between 0 and the most that the server takes.
function numberIn(text, most) {
  return Math.min(most, Math.max(0, Number(text) || 0));
}

export function samplingFields({ temperature, seed }) {
  const field = (key, value, more) =>
    make(
      "label",
      { class: "inline" },
      key,
      make("input", {
        type: "number",
        min: 0,
        value,
        "aria-label": key,
        onchange: (event) => setState({ [key]: event.target.value, step: "" }),
        ...more,
      }),
    );
  return [
    field("temperature", numberIn(temperature, HOTTEST), { max: HOTTEST, step: 0.1 }),
    isSampled({ temperature })
      ? field("seed", Math.floor(numberIn(seed, LAST_SEED)), { max: LAST_SEED, step: 1 })
      : null,
  ].filter(Boolean);
}
