// A part of a screen that is filled when its answer arrives: it dims while it waits, and shows errors.

import { make } from "./dom.js";

const SLOW = 250; // milliseconds before the text of waiting appears

// fill(key, work): does nothing if the key is already shown; an outdated answer is dropped.
export function asyncView(kind, { waiting = "" } = {}) {
  const node = make("div", { class: `async-view ${kind}` });
  let current = null;
  node.fill = async (key, work) => {
    if (key === current) return;
    current = key;
    node.setAttribute("aria-busy", "true"); // the style sheet delays it: a quick answer would flicker
    const slow = setTimeout(() => {
      if (!node.childElementCount && waiting) node.append(make("p", { class: "waiting" }, waiting));
    }, SLOW);
    try {
      const found = await work();
      if (key === current) refill(node, [found].flat(Infinity).filter(Boolean));
    } catch (error) {
      if (key !== current) return;
      current = null;
      node.replaceChildren(problem(error, () => node.fill(key, work)));
    } finally {
      clearTimeout(slow);
      if (key === current || current === null) node.removeAttribute("aria-busy");
    }
  };
  node.clear = () => {
    current = null;
    node.removeAttribute("aria-busy");
    node.replaceChildren();
  };
  return node;
}

// If the keyboard focus was inside, it moves to the chosen element.
function refill(node, children) {
  const hadFocus = node.contains(document.activeElement);
  node.replaceChildren(...children);
  if (hadFocus) node.querySelector('[aria-pressed="true"], [tabindex="0"], button, input')?.focus();
}

export function problem(error, again = null) {
  if (error.status === undefined) console.error(error); // a bug of the page, not a mistake of the user
  return make(
    "div",
    { class: "problem", role: "alert" },
    make("p", {}, make("b", {}, error.message)),
    error.hint ? make("p", { class: "hint" }, error.hint) : null,
    again && error.status !== 404
      ? make("button", { type: "button", class: "quiet", onclick: again }, "Try again")
      : null,
  );
}

export function empty(title, ...children) {
  return make("div", { class: "empty" }, make("p", { class: "empty-title" }, title), children);
}

// Debounce: of several calls in quick succession, only the last runs.
export function debounced(work, milliseconds) {
  let timer = 0;
  const later = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), milliseconds);
  };
  later.now = (...given) => {
    clearTimeout(timer);
    work(...given);
  };
  return later;
}
