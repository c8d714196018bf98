// The line that shows the applied edit: every screen then shows the changed model.

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
    ? `the residual stream after layer ${layer}`
    : `${layer}.${head}`;
}

let line = null;

export function appliedEdit() {
  if (!line) {
    line = make("div", { class: "applied-edit", role: "status" });
    onState(showApplied);
  }
  showApplied(getState());
  return line;
}

function showApplied(state) {
  const changes = changesOf(state);
  line.hidden =
    !changes.length ||
    state.screen === "act" ||
    state.screen === "lenses" ||
    state.screen === "traces";
  if (!line.hidden) draft.isApplied = true; // the link has it
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
          draft.isApplied = false;
          setState({ changes: "" });
        },
      },
      "Undo",
    ),
  );
}
