// Tokens, each with a number and a bar.

import { dotted, make } from "./dom.js";

// kind: "higher", "lower" or "" sets the colour; format turns a value into text; a token may have a note.
export function tokenList(
  tokens,
  { kind = "", format, title = "", most = null, onclick = null, level = "h3" },
) {
  const largest = most ?? Math.max(...tokens.map((token) => Math.abs(token.value)), 1e-9);
  const rows = tokens.map((token) => {
    const inside = [
      make("span", {
        class: "bar",
        style: { width: `${Math.min(100, (100 * Math.abs(token.value)) / largest)}%` },
      }),
      make(
        "span",
        { class: "token" },
        dotted(token.text),
        token.note ? make("small", {}, ` ${token.note}`) : null,
      ),
      make("span", { class: "number" }, format(token.value)),
    ];
    return make(
      "li",
      {},
      onclick ? make("button", { type: "button", onclick: () => onclick(token) }, inside) : inside,
    );
  });
  return make(
    "div",
    { class: `token-list ${kind}` },
    title ? make(level, {}, title) : null,
    tokens.length ? make("ol", {}, rows) : make("p", { class: "soft" }, "none"),
  );
}
