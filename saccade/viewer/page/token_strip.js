// The text as the model has it: its tokens, and under each what the model expects next.

import { announce, dotted, make } from "./dom.js";
import { percent } from "./figures.js";

export function tokenStrip({ tokens, positions = null, chosen, onchoose, label = "Tokens" }) {
  const at = chosen < 0 ? chosen + tokens.length : chosen;
  const buttons = tokens.map((text, place) =>
    tokenButton(text, place, { top: positions?.[place]?.top[0], isChosen: place === at }),
  );
  const strip = make(
    "div",
    {
      class: `tokens${positions ? " with-next" : ""}`,
      role: "group",
      "aria-label": `${label}. Arrow keys move, Enter chooses.`,
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

function tokenButton(text, place, { top, isChosen }) {
  const said = `token ${place}, ${dotted(text)}${top ? `; next ${dotted(top.text)} ${percent(top.value, 0)}` : ""}`;
  return make(
    "button",
    {
      type: "button",
      "data-at": place,
      tabindex: isChosen ? 0 : -1,
      "aria-pressed": String(isChosen),
      "aria-label": said,
      title: said,
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
