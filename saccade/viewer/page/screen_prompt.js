// Type a text: the prediction of the model at each position, and a map of all heads.

import { dotted, make, panel } from "./dom.js";
import { request } from "./api.js";
import { predictedTokens } from "./chosen_tokens.js";
import { mapValues, mapKey, mapPanel } from "./map_panel.js";
import { formatOf, shownTokens, titleOf } from "./measures.js";
import { nameOf } from "./heat_map.js";
import { empty, asyncView } from "./async_view.js";
import { promptBox } from "./prompt_box.js";
import { aboutText, hasWeakLens, readingQuestion } from "./questions.js";
import { setState } from "./state.js";
import { getStatus, isReady } from "./status.js";
import { tokenStrip } from "./token_strip.js";

const RANKED = 14;
let hasBegun = false;

export function promptScreen() {
  const box = promptBox(),
    strip = textView(),
    map = mapPanel(),
    ranked = rankedView();
  const lists = make("div", { class: "below" }, map, panel(null, ranked));
  const node = make(
    "div",
    { class: "screen screen-prompt" },
    make("h1", { class: "visually-hidden" }, "Prompt"),
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

// The first visit starts with an example.
function beginWithExample(state) {
  const example = getStatus()?.examples?.[0];
  if (hasBegun || state.text || !example || !isReady()) return false;
  hasBegun = true;
  setState({ text: example });
  return true;
}

// The text with the predictions; shared with the screen of a head.
export function textView() {
  const node = asyncView("text", { waiting: "Waiting for the model…" });
  node.update = (state) => {
    if (!state.text) {
      node.clear();
      node.append(empty("Type a text to read every head."));
      return;
    }
    node.querySelector(".predicted-tokens")?.update(state);
    node.fill(JSON.stringify([aboutText(state), state.at, state.lens, state.ablate]), async () => {
      // The reading comes first, because the map waits for it; the strip can do without predictions.
      const question = readingQuestion({ ...state, token: "", against: "" });
      const reading = await request("reading", question);
      const predictions = await request("predictions", aboutText(state)).catch(() => null);
      const choose = (at) => setState({ at: at === reading.tokens.length - 1 ? "-1" : String(at) });
      return make(
        "div",
        { class: "text-and-next" },
        tokenStrip({
          tokens: reading.tokens,
          positions: predictions?.positions,
          chosen: reading.position,
          onchoose: choose,
        }),
        predictedTokens(reading),
      );
    });
  };
  return node;
}

// The heads in the order of the values of the map; shared with the screen of a head.
export function rankedView() {
  const node = asyncView("ranked");
  node.update = (state) =>
    node.fill(mapKey(state), async () => {
      const both = await mapValues(state).catch(() => null); // the map shows the error
      return both && rankedHeads(both.reading, both.found);
    });
  return node;
}

function rankedHeads(reading, found) {
  const format = formatOf(found),
    value = (head) => found.values.get(nameOf(head)) ?? null;
  const order = (reading.heads.length ? reading.heads : reading.others)
    .filter((head) => value(head) !== null)
    .sort((a, b) => Math.abs(value(b)) - Math.abs(value(a)))
    .slice(0, RANKED);
  const rows = order.map((head) =>
    make(
      "li",
      { class: found.measure === "lens" && hasWeakLens(head) ? "weak" : "" },
      make(
        "button",
        {
          type: "button",
          "data-head": nameOf(head),
          "aria-label": `${titleOf(head)}, ${format(value(head))}`,
          onclick: () => setState({ screen: "head", head: nameOf(head) }, { isStep: true }),
        },
        make("span", { class: "name" }, nameOf(head)),
        make(
          "span",
          { class: "top-tokens" },
          shownTokens(head, found.measure)
            .tokens.slice(0, 5)
            .map((token) => make("span", { class: "token" }, dotted(token.text))),
        ),
        make("span", { class: "number" }, format(value(head))),
      ),
    ),
  );
  return [
    make("h2", {}, "Largest first"),
    make("p", { class: "note" }, found.label, "."),
    make("ol", { class: "ranking" }, rows),
  ];
}
