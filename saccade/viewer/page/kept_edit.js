// The line that says an edit is kept: every screen is then of the changed model.

import { make } from "./dom.js";
import { draft } from "./draft.js";
import { changesOf, getState, onState, setState } from "./state.js";

const DESCRIPTIONS = {
  ablate: (change) => `ablates ${siteOf(change)} by ${change.by ?? "zero"}`,
  scale: (change) => `scales ${siteOf(change)} by ${change.factor}`,
  patch: (change) => `patches ${siteOf(change)} from “${change.source}”`,
  inject: (change) => `injects “${change.memory}” × ${change.strength} into ${siteOf(change)}`,
};

export function describeChange(change) {
  return DESCRIPTIONS[change.kind]?.(change) ?? change.kind;
}

function siteOf({ layer, head }) {
  return head === null || head === undefined
    ? `the stream after layer ${layer}`
    : `${layer}.${head}`;
}

let line = null;

export function keptEdit() {
  if (!line) {
    line = make("div", { class: "kept", role: "status" });
    onState(showKept);
  }
  showKept(getState());
  return line;
}

function showKept(state) {
  const changes = changesOf(state);
  line.hidden =
    !changes.length ||
    state.screen === "act" ||
    state.screen === "lenses" ||
    state.screen === "traces";
  if (!line.hidden) draft.isKept = true; // as a link had it
  line.replaceChildren(
    make("b", {}, "Edited model: "),
    changes.map(describeChange).join("; "),
    " ",
    make(
      "button",
      {
        type: "button",
        class: "quiet",
        onclick: () => {
          draft.isKept = false;
          setState({ changes: "" });
        },
      },
      "Undo",
    ),
  );
}
