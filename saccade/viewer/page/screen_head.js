// One head, or another part of the model: what it does, what it knows, where it looks, its roles.

import { dotted, make, panel } from "./dom.js";
import { request, hasAnswer, isOffline } from "./api.js";
import { arcs } from "./arcs.js";
import { fixed, percent } from "./number_format.js";
import { doesSection, fact, rolesPanel } from "./head_card.js";
import { cardFromReading, knowsSection } from "./lens_columns.js";
import { mapPanel } from "./map_panel.js";
import { titleOf } from "./measures.js";
import { nameOf } from "./heat_map.js";
import { matrix } from "./matrix.js";
import { asyncView } from "./async_view.js";
import { aboutText, headNamed, headQuestion, partNamed, partsOf, readingQuestion } from "./questions.js";
import { getState, setState } from "./state.js";
import { rankedView, textView } from "./screen_prompt.js";
import { tokenList } from "./token_list.js";

export function headScreen() {
  const strip = textView(),
    map = mapPanel();
  const card = asyncView("card", { waiting: "Reading the head…" }),
    attention = asyncView("attention"),
    roles = asyncView("roles-view"),
    ranked = hasAnswer("roles", {}) ? null : rankedView(); // a file without roles has space for it
  map.classList.add("head-map");
  const node = make(
    "div",
    { class: "screen screen-head" },
    strip,
    make(
      "div",
      { class: `head-columns${ranked ? " with-ranking" : ""}` },
      map,
      card,
      attention,
      ranked ? make("div", { class: "roles-view" }, panel(null, ranked), explained()) : roles,
    ),
  );
  return { node, update: (state) => update(state, { strip, map, card, attention, roles, ranked }) };
}

// People who open a file may not know the viewer.
function explained() {
  return make(
    "p",
    { class: "note" },
    "The map is coloured by what each head does: how far the prediction changes when the head's activation is " +
      "replaced. What its activation knows is the prediction of a lens, fitted to it; the baseline lens ignores the " +
      "activation. The arrow keys move over the map, and the underlined words explain themselves.",
  );
}

async function update(state, { strip, map, card, attention, roles, ranked }) {
  strip.update(state);
  if (!state.text) return;
  const question = readingQuestion(state);
  const reading = await request("reading", question).catch(() => null);
  if (!reading || getState().head !== state.head || getState().text !== state.text) return; // outdated
  const part = partIn(reading, state.head);
  map.update(state, nameOf(part));
  ranked?.update(state);
  const key = JSON.stringify([question, nameOf(part)]);
  card.fill(key, async () => drawCard(reading, part, await cardOf(state, reading, part)));
  if (part.head === null) {
    attention.clear();
    roles.clear();
    return;
  }
  attention.fill(key, async () => attentionPanel(state, await cardOf(state, reading, part)));
  if (hasAnswer("roles", {})) roles.fill(nameOf(part), () => rolesPanel(part));
}

// The part in the link; by default the head with the largest effect, or KL from the baseline.
function partIn(reading, name) {
  const named = headNamed(name);
  const size = ({ effect, lens }) => (effect ? effect.kl : (lens?.kl_from_baseline ?? -1));
  const heads = reading.heads.length ? reading.heads : partsOf(reading);
  return (
    (named && partNamed(reading, named)) ??
    heads.reduce((best, head) => (size(head) > size(best) ? head : best))
  );
}

// Without an answer of its own, a card can be drawn from the reading.
async function cardOf(state, reading, part) {
  const cardQuestion = headQuestion(state, part);
  if (!hasAnswer("head", cardQuestion) || part.head === null) return cardFromReading(reading, part);
  const [card, { lenses: agreement }] = await Promise.all([
    request("head", cardQuestion),
    request("agreement", cardQuestion).catch(() => ({ lenses: {} })), // an older file has none
  ]);
  const lenses = card.lenses.map((lens) => ({ ...lens, agreement: agreement[lens.name] ?? null }));
  return { ...card, lenses };
}

function drawCard(reading, part, card) {
  const act = () =>
    setState(
      {
        screen: "act",
        changes: JSON.stringify([
          { kind: "ablate", layer: card.layer, head: card.head, by: "zero" },
        ]),
      },
      { isStep: true },
    );
  const follow = () =>
    setState(
      { screen: "positions", head: card.head === null ? "" : String(card.head) },
      { isStep: true },
    );
  return panel(
    null,
    make(
      "div",
      { class: "panel-head" },
      make("h1", {}, titleOf(part)),
      isOffline()
        ? null
        : make(
            "div",
            { class: "controls" },
            card.head === null
              ? null
              : make("button", { type: "button", class: "quiet", onclick: act }, "Ablate this head"),
            make(
              "button",
              { type: "button", class: "quiet", onclick: follow },
              "Follow through positions",
            ),
          ),
    ),
    whereRead(reading, card),
    doesSection(reading, part),
    knowsSection(card, part.kind === "head" || part.kind === "residual"),
  );
}

function whereRead(reading, { tokens, position }) {
  const token = make("span", { class: "token" }, dotted(tokens[position])),
    by = isOffline() ? `, read by ${reading.model}` : "";
  return make("p", { class: "note" }, "after ", token, ` (token ${position})`, by);
}

function attentionPanel(state, card) {
  if (!card.attention)
    return panel(
      "Looks",
      make("p", { class: "note" }, "This model does not return its attention weights."),
    );
  const choose = (at) => setState({ at: at === card.tokens.length - 1 ? "-1" : String(at) });
  const title = `Attention of ${nameOf(card)} from token ${card.position}`;
  const question = { ...aboutText(state), layer: card.layer, head: card.head };
  const all = asyncView("all-weights", { waiting: "Loading all weights…" });
  const box = make("details", { class: "more" }, make("summary", {}, "Attention matrix"), all);
  const fill = () =>
    box.open &&
    all.fill("all", async () => {
      const { tokens, weights } = await request("attention", question);
      const names = tokens.map(dotted);
      return matrix({
        weights,
        rows: names,
        columns: names,
        title: `Attention of ${nameOf(card)}`,
        cursor: { row: card.position, column: 0 },
        onchoose: choose,
      });
    });
  box.addEventListener("toggle", fill);
  if (card.tokens.length <= 64 && hasAnswer("attention", question)) box.open = true;
  return panel(
    "Looks",
    card.entropy === null
      ? null
      : make(
          "dl",
          { class: "facts" },
          fact(
            "attention entropy",
            "entropy of the attention weights: 0 for one token, log n for n equal weights, in nats",
            `${fixed(card.entropy)} nats`,
          ),
        ),
    arcs({
      tokens: card.tokens,
      row: card.attention,
      at: card.position,
      title,
      onchoose: isOffline() ? null : choose,
    }),
    card.attends ? mostRead(card) : null,
    hasAnswer("attention", question) ? box : null,
  );
}

// As a list: a reading has the largest weights only, and its tokens cannot be chosen.
function mostRead({ attends }) {
  const tokens = attends.map(({ position, text, weight }) => ({
    text,
    value: weight,
    note: `at ${position}`,
  }));
  return tokenList(tokens, { format: (value) => percent(value, 0), title: "attends to", most: 1 });
}
