// What a link holds: behind the "#" of the address, so it never reaches the server. A key with its default is left out.

const DEFAULTS = {
  screen: "prompt",
  text: "",
  other: "",
  at: "-1",
  lens: "",
  measure: "lens",
  token: "",
  against: "",
  words: "",
  ablate: "zero",
  head: "",
  pins: "",
  changes: "",
  say: "0",
  map: "",
  run: "",
  input: "",
  trace: "",
  view: "0",
  step: "",
  theme: "",
};
const listeners = [];
let held = null; // where there is no address to write to: a file, a notebook

function readLink(hash) {
  const found = { ...DEFAULTS };
  for (const part of hash.replace(/^#/, "").split("&")) {
    const cut = part.indexOf("=");
    const key = cut < 0 ? part : part.slice(0, cut);
    if (!Object.hasOwn(DEFAULTS, key)) continue;
    try {
      found[key] = decodeURIComponent(part.slice(cut + 1));
    } catch {
      found[key] = DEFAULTS[key]; // a link that was cut in the middle of a letter
    }
  }
  return found;
}

export function writeLink(state) {
  const keys = Object.keys(DEFAULTS).filter((key) => String(state[key] ?? "") !== DEFAULTS[key]);
  return keys.map((key) => `${key}=${encodeURIComponent(state[key])}`).join("&");
}

export function getState() {
  return held ?? readLink(location.hash);
}

// Begins with a state that was put into the file itself; a link's own state goes before it.
export function startState(inlined) {
  if (location.hash.length > 1 || !inlined) return;
  held = { ...DEFAULTS };
  for (const key of Object.keys(DEFAULTS))
    if (inlined[key] !== undefined && inlined[key] !== null) held[key] = asText(inlined[key]);
}

function asText(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// Goes there, and leaves a step for the browser's Back unless it only refines what is shown.
export function setState(changes, { isStep = false } = {}) {
  const next = { ...getState(), ...changes },
    hash = `#${writeLink(next)}`;
  if (held) held = next;
  else if (hash !== location.hash) history[isStep ? "pushState" : "replaceState"](null, "", hash);
  tellAll();
}

export function stateWithout(keys) {
  return Object.fromEntries(keys.map((key) => [key, DEFAULTS[key]]));
}

export function onState(listener) {
  listeners.push(listener);
}

export function tellAll() {
  const state = getState();
  for (const listener of listeners) listener(state);
}

// The changes of a kept edit; a link with broken ones has none.
export function changesOf(state) {
  try {
    const found = JSON.parse(state.changes || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

addEventListener("popstate", tellAll);
addEventListener("hashchange", tellAll);
