// One head: its prediction through each lens, its attention, its roles.

import { dotted, make, panel } from "./dom.js";
import { request, hasAnswer, isOffline } from "./api.js";
import { arcs } from "./arcs.js";
import { percent } from "./number_format.js";
import { cardFacts, cardFromReading, lensColumns, rolesPanel } from "./head_card.js";
import { mapPanel } from "./map_panel.js";
import { titleOf } from "./measures.js";
import { nameOf } from "./heat_map.js";
import { matrix } from "./matrix.js";
import { asyncView } from "./async_view.js";
import { aboutText, headNamed, headQuestion, readingQuestion } from "./questions.js";
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
    "The map shows the KL of each head's lens from the baseline lens, which ignores the activation and always " +
      "gives the mean prediction. The lists have the tokens that the lens predicts more than the baseline, and " +
      "those that it predicts less. The arrow keys move over the map.",
  );
}

async function update(state, { strip, map, card, attention, roles, ranked }) {
  strip.update(state);
  if (!state.text) return;
  const question = readingQuestion(state);
  const reading = await request("reading", question).catch(() => null);
  if (!reading || getState().head !== state.head || getState().text !== state.text) return; // outdated
  const site = siteIn(reading, state.head);
  map.update(state, nameOf(site));
  ranked?.update(state);
  const key = JSON.stringify([question, site]);
  card.fill(key, async () => drawCard(await cardOf(state, question, site)));
  if (site.head === null) {
    attention.clear();
    roles.clear();
    return;
  }
  attention.fill(key, async () => attentionPanel(state, await cardOf(state, question, site)));
  if (hasAnswer("roles", {})) roles.fill(nameOf(site), () => rolesPanel(site));
}

// The head in the link; by default the one with the largest KL from the baseline.
function siteIn(reading, name) {
  const named = headNamed(name),
    isHere = (head) => head.layer === named?.layer && head.head === named?.head;
  const most = (best, head) => (head.kl_from_baseline > best.kl_from_baseline ? head : best);
  const { layer, head } = reading.heads.find(isHere) ?? reading.heads.reduce(most);
  return { layer, head };
}

// Without an answer of its own, a card can be drawn from the reading.
async function cardOf(state, question, site) {
  const cardQuestion = headQuestion(state, site);
  if (hasAnswer("head", cardQuestion) && site.head !== null) return request("head", cardQuestion);
  return cardFromReading(await request("reading", question), site);
}

function drawCard(card) {
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
      make("h1", {}, titleOf(card)),
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
    make(
      "p",
      { class: "note" },
      "after ",
      make("span", { class: "token" }, dotted(card.tokens[card.position])),
      ` (token ${card.position})`,
      card.model ? `, read by ${card.model}` : "",
    ),
    cardFacts(card),
    lensColumns(card),
  );
}

function attentionPanel(state, card) {
  if (!card.attention)
    return panel(
      "Attention",
      make("p", { class: "note" }, "This model does not return its attention weights."),
    );
  const choose = (at) => setState({ at: at === card.tokens.length - 1 ? "-1" : String(at) });
  const title = `Attention of ${nameOf(card)} from token ${card.position}`;
  const question = { ...aboutText(state), layer: card.layer, head: card.head };
  const all = asyncView("all-weights", { waiting: "Loading all weights…" });
  const box = make(
    "details",
    { class: "more" },
    make("summary", {}, "Attention matrix"),
    all,
  );
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
    "Attention",
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
