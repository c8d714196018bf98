// The field for a text. Typing never waits: requests follow a pause, or Enter.

import { choice, labelled, make } from "./dom.js";
import { debounced } from "./async_view.js";
import { setState } from "./state.js";
import { getStatus } from "./status.js";
import { isOffline } from "./api.js";

const PAUSE = 700; // milliseconds

export function promptBox({
  key = "text",
  label = "Text",
  hasExamples = true,
  hasLens = true,
  more = {},
} = {}) {
  const later = debounced(
    (text) => text.trim() && setState({ [key]: text, at: "-1", ...more }),
    PAUSE,
  );
  const box = make("textarea", {
    rows: 1,
    spellcheck: "false",
    placeholder: "Type what the model should read",
    maxlength: 20000,
    readonly: isOffline(),
    oninput: () => {
      grow(box);
      later(box.value);
    },
    onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        later.now(box.value);
      }
    },
  });
  const below = make("div", { class: "prompt-below" });
  const node = make("div", { class: "prompt" }, labelled(label, box), below);
  node.update = (state) => {
    if (document.activeElement !== box || !box.value) box.value = state[key];
    grow(box);
    below.replaceChildren(
      hasExamples && !isOffline() ? examples(key) : "",
      hasLens ? lensChoice(state) : "",
    );
  };
  return node;
}

function grow(box) {
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, 260)}px`;
}

function examples(key) {
  const found = getStatus()?.examples ?? [];
  if (!found.length) return "";
  return make(
    "p",
    { class: "examples" },
    "Try ",
    found.slice(0, 4).map((text) =>
      make(
        "button",
        {
          type: "button",
          class: "quiet",
          title: text,
          onclick: () => setState({ [key]: text, at: "-1" }, { isStep: true }),
        },
        short(text),
      ),
    ),
  );
}

function short(text) {
  const line = text.replace(/\s+/g, " ");
  return line.length > 46 ? `${line.slice(0, 44)}…` : line;
}

function lensChoice(state) {
  const lenses = getStatus()?.lenses ?? [];
  if (lenses.length < 2) return "";
  return make(
    "label",
    { class: "inline" },
    "lens ",
    choice(
      lenses.map((name) => [name, name]),
      state.lens || lenses[0],
      (lens) => setState({ lens: lens === lenses[0] ? "" : lens }),
      "lens",
    ),
  );
}
