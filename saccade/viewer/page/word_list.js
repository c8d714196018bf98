// Words with a figure and a bar each.

import { dotted, make } from "./dom.js";

// kind: "adds", "drops" or "" says the colour; figure turns a value into text; a word may have a note.
export function wordList(
  words,
  { kind = "", figure, title = "", most = null, onclick = null, level = "h3" },
) {
  const largest = most ?? Math.max(...words.map((word) => Math.abs(word.value)), 1e-9);
  const rows = words.map((word) => {
    const inside = [
      make("span", {
        class: "bar",
        style: { width: `${Math.min(100, (100 * Math.abs(word.value)) / largest)}%` },
      }),
      make(
        "span",
        { class: "token" },
        dotted(word.text),
        word.note ? make("small", {}, ` ${word.note}`) : null,
      ),
      make("span", { class: "number" }, figure(word.value)),
    ];
    return make(
      "li",
      {},
      onclick ? make("button", { type: "button", onclick: () => onclick(word) }, inside) : inside,
    );
  });
  return make(
    "div",
    { class: `words ${kind}` },
    title ? make(level, {}, title) : null,
    words.length ? make("ol", {}, rows) : make("p", { class: "soft" }, "none"),
  );
}
