// The token that effects are shown on, and the one it is contrasted with: chosen among the predicted ones.

import { dotted, make } from "./dom.js";
import { percent } from "./number_format.js";
import { getState, setState } from "./state.js";
import { isOffline } from "./api.js";
import { tokenList } from "./token_list.js";

const texts = new Map(); // of tokens seen, by "#" and id, as the state names them

// What a person reads for a token of the state: " Mary" for "#7042".
export function tokenText(name) {
  return texts.get(name) ?? name;
}

// The likeliest next tokens; in the viewer each can be chosen.
export function predictedTokens(reading) {
  for (const token of [...reading.prediction, reading.target, reading.against])
    if (token) texts.set(nameFor(token), token.text);
  const list = tokenList(reading.prediction.slice(0, 6), {
    title: `After “${dotted(reading.tokens[reading.position])}” the model predicts`,
    format: (value) => percent(value),
    most: 1,
    level: "h2",
    onclick: isOffline() || !reading.target ? null : choose,
  });
  const about = make("p", { class: "note", role: "status" });
  const node = make("div", { class: "predicted-tokens" }, list, about);
  node.update = ({ token, against }) => {
    list.querySelectorAll("li > button").forEach((button, at) => {
      const name = nameFor(reading.prediction[at]);
      button.setAttribute("aria-pressed", String(name === token || name === against));
      button.dataset.side = name === token ? "token" : name === against ? "against" : "";
    });
    about.replaceChildren(...(isOffline() || !reading.target ? [] : hint(token, against)));
  };
  node.update(getState());
  return node;
}

function nameFor(token) {
  return `#${token.id}`;
}

// The first click chooses the token, the second what it is contrasted with, the next clears both.
function choose(predicted) {
  const { token, against, measure } = getState(),
    name = nameFor(predicted);
  if (!token) setState({ token: name, measure: measure === "direct" ? measure : "token" });
  else if (!against && name !== token) setState({ against: name });
  else clear();
}

function clear() {
  setState({ token: "", against: "", measure: "effect" });
}

function hint(token, against) {
  if (!token) return ["Choose a token to see which heads promote and which suppress it."];
  const named = (name) => make("span", { class: "token" }, dotted(tokenText(name)));
  const end = make("button", { type: "button", class: "quiet", onclick: clear }, "Clear");
  return against
    ? ["The map: who promotes ", named(token), " against ", named(against), ". ", end]
    : ["The map: who promotes ", named(token), ". Choose another token to contrast it with. ", end];
}
