// Type a text: what the model expects at each position, and a map of what every head does there.

import { dotted, make, panel } from "./dom.js";
import { ask } from "./ask.js";
import { percent } from "./figures.js";
import { mapFigures, mapKey, mapPanel } from "./map_panel.js";
import { figureOf, titleOf } from "./measures.js";
import { nameOf } from "./heat_map.js";
import { empty, place } from "./place.js";
import { promptBox } from "./prompt_box.js";
import { aboutText, isWeakLens, readingQuestion } from "./questions.js";
import { setState } from "./state.js";
import { getStatus, isReady } from "./status.js";
import { tokenStrip } from "./token_strip.js";
import { tokenList } from "./token_list.js";

const RANKED = 14;
let hasBegun = false;

export function promptScreen() {
  const box = promptBox(),
    strip = textPlace(),
    map = mapPanel(),
    ranked = rankedPlace();
  const lists = make("div", { class: "below" }, map, panel(null, ranked));
  const node = make(
    "div",
    { class: "screen screen-prompt" },
    make("h1", { class: "unseen" }, "Prompt"),
    box,
    strip,
    lists,
  );
  return {
    node,
    update(state) {
      box.update(state);
      if (beginWithExample(state)) return;
      lists.hidden = !state.text;
      strip.update(state);
      if (!state.text) return;
      map.update(state);
      ranked.update(state);
    },
  };
}

// Somebody who comes for the first time sees something at once.
function beginWithExample(state) {
  const example = getStatus()?.examples?.[0];
  if (hasBegun || state.text || !example || !isReady()) return false;
  hasBegun = true;
  setState({ text: example });
  return true;
}

// The text with what is expected next; shared with the head's screen.
export function textPlace() {
  const node = place("text", { waiting: "Waits for the model…" });
  node.update = (state) => {
    if (!state.text) {
      node.clear();
      node.append(empty("Type a text to see what every head says about it."));
      return;
    }
    node.fill(JSON.stringify([aboutText(state), state.at, state.lens]), async () => {
      // The reading comes first, because the map waits for it; the strip can do without predictions.
      const reading = await ask("reading", readingQuestion(state));
      const said = await ask("predictions", aboutText(state)).catch(() => null);
      const choose = (at) => setState({ at: at === reading.tokens.length - 1 ? "-1" : String(at) });
      return make(
        "div",
        { class: "text-and-next" },
        tokenStrip({
          tokens: reading.tokens,
          positions: said?.positions,
          chosen: reading.position,
          onchoose: choose,
        }),
        tokenList(reading.prediction.slice(0, 6), {
          title: `After “${dotted(reading.tokens[reading.position])}” it predicts`,
          figure: (value) => percent(value),
          most: 1,
          level: "h2",
        }),
      );
    });
  };
  return node;
}

// The heads in order of what the map shows; shared with the head's screen.
export function rankedPlace() {
  const node = place("ranked");
  node.update = (state) =>
    node.fill(mapKey(state), async () => {
      const both = await mapFigures(state).catch(() => null); // the map tells what went wrong
      return both && rankedHeads(state, both.reading, both.found);
    });
  return node;
}

function rankedHeads(state, reading, found) {
  const figure = figureOf(state, found),
    value = (head) => found.values.get(nameOf(head)) ?? null;
  const order = reading.heads
    .filter((head) => value(head) !== null)
    .sort((a, b) => Math.abs(value(b)) - Math.abs(value(a)))
    .slice(0, RANKED);
  const rows = order.map((head) =>
    make(
      "li",
      { class: isWeakLens(head.quality) ? "weak" : "" },
      make(
        "button",
        {
          type: "button",
          "data-head": nameOf(head),
          "aria-label": `${titleOf(head)}, ${figure(value(head))}`,
          onclick: () => setState({ screen: "head", head: nameOf(head) }, { isStep: true }),
        },
        make("span", { class: "name" }, nameOf(head)),
        make(
          "span",
          { class: "said" },
          head.adds.slice(0, 5).map((token) => make("span", { class: "token" }, dotted(token.text))),
        ),
        make("span", { class: "number" }, figure(value(head))),
      ),
    ),
  );
  return [
    make("h2", {}, "Largest first"),
    make("p", { class: "note" }, found.label, "."),
    make("ol", { class: "ranking" }, rows),
  ];
}
