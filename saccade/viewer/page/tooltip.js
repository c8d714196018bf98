// The tooltip that follows the pointer.

import { make } from "./dom.js";

let card = null;

export function showTooltip(children, x, y) {
  card ??= document.body.appendChild(make("div", { id: "tip", "aria-hidden": "true" }));
  card.replaceChildren(...[children].flat(Infinity));
  card.hidden = false;
  const { width, height } = card.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? x - 14 - width : x + 14;
  const top = y + 14 + height > innerHeight ? y - 14 - height : y + 14;
  card.style.left = `${Math.max(6, left)}px`;
  card.style.top = `${Math.max(6, top)}px`;
}

export function hideTooltip() {
  if (card) card.hidden = true;
}

// A word with a definition: shown when it is pointed at, focused or tapped.
export function term(name, definition) {
  const node = make(
    "button",
    { type: "button", class: "term", "aria-label": `${name}: ${definition}` },
    name,
  );
  const show = () => {
    const { left, bottom } = node.getBoundingClientRect();
    showTooltip([make("p", {}, definition)], left - 14, bottom - 8);
  };
  for (const event of ["pointerenter", "focus", "click"]) node.addEventListener(event, show);
  for (const event of ["pointerleave", "blur"]) node.addEventListener(event, hideTooltip);
  return node;
}

addEventListener("scroll", hideTooltip, { passive: true, capture: true });
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});
