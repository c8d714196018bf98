// Contexts of a head: a text before a position, where the head looked there, and what it did.

import { dotted, make } from "./dom.js";
import { isOffline } from "./api.js";
import { scaleOf } from "./colours.js";
import { brief, percent, signed } from "./number_format.js";
import { setState } from "./state.js";
import { stepper } from "./stepper.js";
import { tokenList } from "./token_list.js";

const SHOWN = 400; // characters before the tokens

export function contextStepper(page) {
  const { strongest, strata } = page.does;
  const groups = [
    { name: "strongest", items: strongest },
    ...strata.map((stratum) => ({ name: stratumName(stratum), items: stratum.contexts })),
  ].filter(({ items }) => items.length);
  if (!groups.length) return null;
  return stepper({
    title: "Contexts",
    groups,
    draw: (context) => contextView(page, context),
    describe: (context) =>
      `effect ${brief(context.kl)} nats after ${dotted(context.tokens[context.tokens.length - 1])}; ` +
      `promotes ${context.promotes.map(([text]) => dotted(text)).join(", ") || "nothing"}`,
    onstep: (at) => setState({ context: String(at) }),
  });
}

function stratumName({ from, to, share }) {
  const range = to === null ? `over ${from} nats` : `${from} to ${to} nats`;
  return `${range} (${percent(share)} of positions)`;
}

function contextView(page, context) {
  const { start, tokens } = context,
    weights = new Map(context.looks),
    top = context.promotes[0]?.[0]?.trim();
  const scale = scaleOf([...weights.values()], { low: 0, high: 1, root: true });
  const marked = tokens.map((text, at) => {
    const weight = weights.get(start + at) ?? null,
      isHere = at === tokens.length - 1,
      isTop = Boolean(top) && text.trim() === top;
    return make(
      "span",
      {
        class: `token${isHere ? " is-here" : ""}${isTop ? " is-promoted" : ""}`,
        title: weight === null ? null : `attention ${percent(weight)}`,
        style: weight === null ? undefined : { background: scale.colour(weight), color: scale.textColour(weight) },
      },
      dotted(text),
    );
  });
  const before = context.before.length > SHOWN ? `…${context.before.slice(-SHOWN)}` : context.before;
  return [
    make(
      "p",
      { class: "running context-text" },
      before ? make("span", { class: "soft" }, before) : null,
      marked,
      make("span", { class: "context-next soft", title: "the text's next token" }, ` → ${dotted(context.next)}`),
    ),
    make("p", { class: "note" }, notes(context)),
    opening(page, context),
    make(
      "div",
      { class: "lens-tokens" },
      changes("promotes", context.promotes, "higher"),
      changes("suppresses", context.suppresses, "lower"),
      tokenList(context.looks.map(([key, weight]) => lookedAt(context, key, weight)), {
        title: "looks at",
        format: (value) => percent(value, 0),
        most: 1,
      }),
    ),
  ];
}

function notes({ kl, on_next: onNext, next, source, window, position }) {
  return (
    `Effect ${brief(kl)} nats, on the text's next token ${dotted(next)}: ${signed(onNext, 3)} nats. ` +
    `${source}, window ${window}, position ${position}. Shaded: where it looks; underlined: the token it promotes most.`
  );
}

function changes(name, tokens, kind) {
  return tokenList(
    tokens.map(([text, value]) => ({ text, value })),
    { kind, format: (value) => signed(value, 3), title: `${name} (nats)` },
  );
}

function lookedAt({ start, tokens, position }, key, weight) {
  const text = tokens[key - start] ?? (key === 0 ? "(first position)" : "(further back)"),
    back = position - key;
  return { text, value: weight, note: back ? `${back} back` : "itself" };
}

// `prompt` is a text that the tokenizer turns into these very tokens; there is none without a model.
function opening(page, context) {
  if (isOffline() || context.prompt === undefined) return null;
  const isSame = context.prompt !== null,
    text = context.prompt ?? context.before + context.tokens.join("");
  return make(
    "div",
    { class: "controls" },
    make("button", { type: "button", class: "quiet", onclick: () => load(page, text) }, "Open in the Prompt screen"),
    isSame
      ? null
      : make("span", { class: "note" }, "Typed again, this text has other tokens: its effects will be similar, not the same."),
  );
}

function load({ name }, text) {
  setState({ screen: "prompt", text, at: "-1", head: name, token: "", against: "" }, { isStep: true });
  scrollTo(0, 0);
}
