// A part of a screen that is filled with what an answer shows: it dims while it waits, and says what went wrong.

import { make } from "./dom.js";

const SLOW = 250; // milliseconds before waiting is told in words

// fill(key, work): does nothing if the key is the one in sight; an answer that was overtaken is dropped.
export function place(kind, { waiting = "" } = {}) {
  const node = make("div", { class: `place ${kind}` });
  let current = null;
  node.fill = async (key, work) => {
    if (key === current) return;
    current = key;
    node.setAttribute("aria-busy", "true"); // the style sheet shows it after a while: a quick answer would flicker
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

// Whoever was inside by keyboard is put where the choice is now.
function refill(node, children) {
  const hadFocus = node.contains(document.activeElement);
  node.replaceChildren(...children);
  if (hadFocus) node.querySelector('[aria-pressed="true"], [tabindex="0"], button, input')?.focus();
}

export function problem(error, again = null) {
  if (error.status === undefined) console.error(error); // ours, not the user's
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

// Runs the last of several calls that come close together.
export function settled(work, milliseconds) {
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
