// The tokens of the text, and under each the model's prediction of the next.

import { announce, dotted, make } from "./dom.js";
import { percent } from "./number_format.js";

export function tokenStrip({ tokens, positions = null, chosen, onchoose, title = "Tokens" }) {
  const at = chosen < 0 ? chosen + tokens.length : chosen;
  const buttons = tokens.map((text, position) =>
    tokenButton(text, position, { top: positions?.[position]?.top[0], isChosen: position === at }),
  );
  const strip = make(
    "div",
    {
      class: `tokens${positions ? " with-next" : ""}`,
      role: "group",
      "aria-label": `${title}. Arrow keys move, Enter chooses.`,
    },
    buttons,
  );
  strip.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) onchoose(Number(button.dataset.at));
  });
  strip.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -tokens.length, End: tokens.length }[
      event.key
    ];
    const from = event.target.closest("button");
    if (!step || !from) return;
    event.preventDefault();
    const next = buttons[Math.max(0, Math.min(tokens.length - 1, Number(from.dataset.at) + step))];
    from.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    announce(next.getAttribute("aria-label"));
  });
  return strip;
}

function tokenButton(text, position, { top, isChosen }) {
  const label = `token ${position}, ${dotted(text)}${top ? `; next ${dotted(top.text)} ${percent(top.value, 0)}` : ""}`;
  return make(
    "button",
    {
      type: "button",
      "data-at": position,
      tabindex: isChosen ? 0 : -1,
      "aria-pressed": String(isChosen),
      "aria-label": label,
      title: label,
    },
    make("span", { class: "token" }, dotted(text) || " "),
    top
      ? make(
          "span",
          { class: "next" },
          make("span", { class: "share", style: { width: `${100 * top.value}%` } }),
          dotted(top.text),
        )
      : null,
  );
}
