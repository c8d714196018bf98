// One head: what it promotes and suppresses under each lens, where it looks, what it is there for.

import { dotted, make, panel } from "./dom.js";
import { ask, hasAnswer, isOffline } from "./ask.js";
import { arcs } from "./arcs.js";
import { percent } from "./figures.js";
import { cardFacts, cardFromReading, lensColumns, rolesPanel } from "./head_card.js";
import { mapPanel } from "./map_panel.js";
import { titleOf } from "./measures.js";
import { nameOf } from "./heat_map.js";
import { matrix } from "./matrix.js";
import { place } from "./place.js";
import { aboutText, headNamed, headQuestion, readingQuestion } from "./questions.js";
import { getState, setState } from "./state.js";
import { rankedPlace, textPlace } from "./screen_prompt.js";
import { tokenList } from "./token_list.js";

export function headScreen() {
  const strip = textPlace(),
    map = mapPanel();
  const card = place("card", { waiting: "Reads the head…" }),
    looks = place("looks"),
    roles = place("roles-place"),
    ranked = hasAnswer("roles", {}) ? null : rankedPlace(); // a file without roles has room for it
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
      looks,
      ranked ? make("div", { class: "roles-place" }, panel(null, ranked), explained()) : roles,
    ),
  );
  return { node, update: (state) => update(state, { strip, map, card, looks, roles, ranked }) };
}

// A file is opened by people who have never seen the viewer.
function explained() {
  return make(
    "p",
    { class: "note" },
    "A head says as many nats as its lens is away from the baseline lens, the one that hears nothing and always " +
      "gives the mean prediction. It adds the tokens that it makes likelier than the baseline lens has them, and " +
      "suppresses those it makes less likely. The arrow keys move over the map.",
  );
}

async function update(state, { strip, map, card, looks, roles, ranked }) {
  strip.update(state);
  if (!state.text) return;
  const question = readingQuestion(state);
  const reading = await ask("reading", question).catch(() => null);
  if (!reading || getState().head !== state.head || getState().text !== state.text) return; // overtaken
  const site = siteIn(reading, state.head);
  map.update(state, nameOf(site));
  ranked?.update(state);
  const key = JSON.stringify([question, site]);
  card.fill(key, async () => drawCard(await cardOf(state, question, site)));
  if (site.head === null) {
    looks.clear();
    roles.clear();
    return;
  }
  looks.fill(key, async () => whereItLooks(state, await cardOf(state, question, site)));
  if (hasAnswer("roles", {})) roles.fill(nameOf(site), () => rolesPanel(site));
}

// The head that the link names; the one that says most where it names none that is here.
function siteIn(reading, name) {
  const named = headNamed(name),
    isHere = (head) => head.layer === named?.layer && head.head === named?.head;
  const most = (best, head) => (head.kl_from_baseline > best.kl_from_baseline ? head : best);
  const { layer, head } = reading.heads.find(isHere) ?? reading.heads.reduce(most);
  return { layer, head };
}

// Where there is no answer of its own, the reading knows enough for a card.
async function cardOf(state, question, site) {
  const asked = headQuestion(state, site);
  if (hasAnswer("head", asked) && site.head !== null) return ask("head", asked);
  return cardFromReading(await ask("reading", question), site);
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
              : make("button", { type: "button", class: "quiet", onclick: act }, "Switch it off"),
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

function whereItLooks(state, card) {
  if (!card.attention)
    return panel(
      "Where it looks",
      make("p", { class: "note" }, "The model hides its attention weights."),
    );
  const choose = (at) => setState({ at: at === card.tokens.length - 1 ? "-1" : String(at) });
  const title = `Where ${nameOf(card)} looks from token ${card.position}`;
  const asked = { ...aboutText(state), layer: card.layer, head: card.head };
  const all = place("all-weights", { waiting: "Gets all weights…" });
  const box = make(
    "details",
    { class: "more" },
    make("summary", {}, "From every token: the matrix"),
    all,
  );
  const fill = () =>
    box.open &&
    all.fill("all", async () => {
      const { tokens, weights } = await ask("attention", asked);
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
  if (card.tokens.length <= 64 && hasAnswer("attention", asked)) box.open = true;
  return panel(
    "Where it looks",
    arcs({
      tokens: card.tokens,
      row: card.attention,
      at: card.position,
      title,
      onchoose: isOffline() ? null : choose,
    }),
    card.attends ? mostRead(card) : null,
    hasAnswer("attention", asked) ? box : null,
  );
}

// In words: a reading has the largest weights only, and its tokens cannot be chosen.
function mostRead({ attends }) {
  const tokens = attends.map(({ position, text, weight }) => ({
    text,
    value: weight,
    note: `at ${position}`,
  }));
  return tokenList(tokens, { figure: (value) => percent(value, 0), title: "attends to", most: 1 });
}
