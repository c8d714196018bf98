// Sampled sequences of a head: pointing at a token, or reaching it with the arrow keys, shows where the head looks
// from there.

import { announce, dotted, make } from "./dom.js";
import { scaleOf } from "./colours.js";
import { percent } from "./number_format.js";
import { stepper } from "./stepper.js";

export function sequenceStepper({ looks }) {
  return stepper({
    title: "Sequences",
    groups: groupsOf(looks.sequences),
    draw: sequenceView,
    describe: ({ peak }) => `largest weight ${percent(peak, 0)}`,
  });
}

const FIFTHS = ["strongest windows", "of the second fifth", "of the middle fifth", "of the fourth fifth", "of the weakest fifth"];

// By interval: 5 is the fifth of the windows with the largest weights.
function groupsOf(sequences) {
  return FIFTHS.map((name, at) => ({
    name,
    items: sequences.filter(({ interval }) => interval === FIFTHS.length - at),
  })).filter(({ items }) => items.length);
}

// `flat` has keys and weights of each token in turn, weights per mille.
function sequenceView({ tokens, looks: flat, peak, window }) {
  const received = tokens.map(() => 0);
  const looks = flat.map((row) => {
    const pairs = [];
    for (let at = 0; at < row.length; at += 2) pairs.push([row[at], row[at + 1] / 1000]);
    for (const [key, weight] of pairs) received[key] = Math.max(received[key], weight);
    return pairs;
  });
  // Without a chosen token: the largest weight that each token gets, the first position left out.
  const rest = received.map((weight, at) => (at ? weight : 0));
  const scale = scaleOf([], { low: 0, high: 1, root: true });
  const said = make("p", { class: "note said" });
  const spans = tokens.map((text, at) =>
    make(
      "span",
      { class: "token", role: "button", tabindex: -1, "data-at": at, "aria-label": labelOf(at) },
      dotted(text),
    ),
  );
  const row = make(
    "p",
    {
      class: "running token-row",
      role: "group",
      "aria-label": "Tokens of the sequence. Arrow keys move and tell where the head looks from there.",
    },
    spans,
  );
  spans[0].tabIndex = 0;

  function labelOf(at) {
    const seen = [...looks[at]].sort((a, b) => b[1] - a[1]).slice(0, 4);
    const parts = seen.map(([key, weight]) => `${dotted(tokens[key])} ${percent(weight, 0)}, ${at - key} back`);
    return `token ${at}, ${dotted(tokens[at])}: ${parts.length ? `looks at ${parts.join("; ")}` : "no large weight"}`;
  }
  function show(at) {
    const weights = at === null ? rest : tokens.map(() => 0);
    if (at !== null) for (const [key, weight] of looks[at]) weights[key] = weight;
    spans.forEach((span, each) => {
      const weight = weights[each];
      span.style.background = weight > 0 ? scale.colour(weight) : "";
      span.style.color = weight > 0 ? scale.textColour(weight) : "";
      span.classList.toggle("is-here", each === at);
    });
    said.textContent =
      at === null
        ? `Window ${window}, largest weight ${percent(peak, 0)}. Shaded by the largest weight that each token ` +
          "gets; point at a token to see where the head looks from there."
        : labelOf(at);
  }
  const atOf = (target) => target.closest?.("[data-at]")?.dataset.at;
  row.addEventListener("pointerover", (event) => {
    const at = atOf(event.target);
    if (at !== undefined) show(Number(at));
  });
  row.addEventListener("pointerleave", () => show(null));
  row.addEventListener("focusin", (event) => show(Number(atOf(event.target))));
  row.addEventListener("focusout", () => show(null));
  row.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -tokens.length, End: tokens.length }[event.key],
      from = atOf(event.target);
    if (!by || from === undefined) return;
    event.preventDefault();
    const next = spans[Math.max(0, Math.min(tokens.length - 1, Number(from) + by))];
    spans[Number(from)].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    announce(next.getAttribute("aria-label"));
  });
  show(null);
  return [row, said];
}
