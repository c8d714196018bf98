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

addEventListener("scroll", hideTooltip, { passive: true, capture: true });
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});
