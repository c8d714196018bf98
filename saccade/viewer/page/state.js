// The state in a link: after the "#" of the URL, so it is never sent to the server. Defaults are left out.

const DEFAULTS = {
  screen: "prompt",
  text: "",
  other: "",
  at: "-1",
  lens: "",
  measure: "effect",
  token: "",
  against: "",
  words: "",
  ablate: "mean",
  head: "",
  pins: "",
  shows: "",
  cell: "",
  threshold: "",
  changes: "",
  say: "0",
  map: "",
  x: "distance",
  y: "kl",
  colour: "layer",
  find: "",
  context: "0",
  run: "",
  input: "",
  trace: "",
  view: "0",
  step: "",
  temperature: "",
  seed: "",
  theme: "",
};
const listeners = [];
let localState = null; // if there is no URL to write to: a file, a notebook

function readLink(hash) {
  const found = { ...DEFAULTS };
  for (const part of hash.replace(/^#/, "").split("&")) {
    const cut = part.indexOf("=");
    const key = cut < 0 ? part : part.slice(0, cut);
    if (!Object.hasOwn(DEFAULTS, key)) continue;
    try {
      found[key] = decodeURIComponent(part.slice(cut + 1));
    } catch {
      found[key] = DEFAULTS[key]; // a link that was cut inside an escape
    }
  }
  return found;
}

export function writeLink(state) {
  const keys = Object.keys(DEFAULTS).filter((key) => String(state[key] ?? "") !== DEFAULTS[key]);
  return keys.map((key) => `${key}=${encodeURIComponent(state[key])}`).join("&");
}

export function getState() {
  return localState ?? readLink(location.hash);
}

// Starts with the state inlined in a file, unless the link has a state.
export function startState(inlined) {
  if (location.hash.length > 1 || !inlined) return;
  localState = { ...DEFAULTS };
  for (const key of Object.keys(DEFAULTS))
    if (inlined[key] !== undefined && inlined[key] !== null) localState[key] = asText(inlined[key]);
}

function asText(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// Changes the state; `isStep` adds an entry to the browser's history.
export function setState(changes, { isStep = false } = {}) {
  const next = { ...getState(), ...changes },
    hash = `#${writeLink(next)}`;
  if (localState) localState = next;
  else if (hash !== location.hash) history[isStep ? "pushState" : "replaceState"](null, "", hash);
  notifyAll();
}

export function stateWithout(keys) {
  return Object.fromEntries(keys.map((key) => [key, DEFAULTS[key]]));
}

export function onState(listener) {
  listeners.push(listener);
}

export function notifyAll() {
  const state = getState();
  for (const listener of listeners) listener(state);
}

// The changes of the model; none if the link is damaged.
export function changesOf(state) {
  try {
    const found = JSON.parse(state.changes || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

addEventListener("popstate", notifyAll);
addEventListener("hashchange", notifyAll);
