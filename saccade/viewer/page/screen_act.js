// Change a head and see the output change, beside what the lens said would happen.

import { make, panel } from "./dom.js";
import { ask, askFile, isOffline } from "./ask.js";
import { drawResult } from "./act_result.js";
import { changeEditor } from "./change_editor.js";
import { draft } from "./draft.js";
import { download, downloadJson } from "./files.js";
import { tokenField } from "./measures.js";
import { describeChange } from "./kept_edit.js";
import { empty, place, problem } from "./place.js";
import { promptBox } from "./prompt_box.js";
import { headNamed } from "./questions.js";
import { changesOf, setState } from "./state.js";

export function actScreen() {
  const box = promptBox(),
    editor = make("div"),
    result = place("result", { waiting: "Runs the model twice…" }),
    files = make("div", { class: "controls" });
  const node = make(
    "div",
    { class: "screen screen-act" },
    make("h1", { class: "unseen" }, "Act"),
    box,
    panel("Changes", editor, files),
    result,
  );
  const parts = { editor, result, files, shown: null };
  return {
    node,
    update(state) {
      box.update(state);
      const begun = isOffline() || state.changes ? null : changesToBeginWith(state, parts);
      if (begun) setState({ changes: begun });
      else showChanges(state, parts);
    },
  };
}

// What was tried before; or, once, the head that was looked at, switched off.
function changesToBeginWith({ text, head }, parts) {
  if (draft.changes) return draft.changes;
  const site = headNamed(head),
    isFirst = parts.shown === null;
  if (!isFirst || !text || !site || site.head === null) return null;
  parts.shown = "";
  return JSON.stringify([{ kind: "ablate", ...site, by: "zero" }]);
}

function showChanges(state, parts) {
  const { editor, result, files } = parts,
    changes = changesOf(state),
    asked = actQuestion(state, changes);
  if (parts.shown !== state.changes) {
    parts.shown = state.changes;
    const focus = focusedField(editor);
    editor.replaceChildren(isOffline() ? changeList(changes) : changeEditor(changes, keepDraft));
    focus?.();
  }
  if (!files.contains(document.activeElement))
    files.replaceChildren(...(isOffline() ? [] : fileButtons(state, asked, changes)));
  if (state.text && changes.length) {
    result.fill(JSON.stringify(asked), async () => drawResult(await ask("act", asked)));
    return;
  }
  result.clear();
  result.append(empty(state.text ? "Add a change to see what it does." : "Type a text first."));
}

function keepDraft(changes) {
  draft.changes = changes.length ? JSON.stringify(changes) : "";
  setState({ changes: draft.changes });
}

function changeList(changes) {
  return make(
    "ul",
    {},
    changes.map((change) => make("li", {}, describeChange(change))),
  );
}

function actQuestion(state, changes) {
  return {
    text: state.text,
    changes,
    lens: state.lens,
    token: state.token,
    say: Number(state.say) || 0,
  };
}

// A row is made anew after each change; whoever was in a field stays in it.
function focusedField(editor) {
  const fields = [...editor.querySelectorAll("select, input, button")],
    at = fields.indexOf(document.activeElement);
  return at < 0 ? null : () => [...editor.querySelectorAll("select, input, button")][at]?.focus();
}

function fileButtons(state, asked, changes) {
  const said = make("output", { class: "soft" });
  const button = (title, work) =>
    make(
      "button",
      {
        type: "button",
        class: "quiet",
        onclick: async () => {
          said.replaceChildren();
          try {
            await work();
          } catch (error) {
            said.replaceChildren(problem(error));
          }
        },
      },
      title,
    );
  if (!changes.length) return [];
  return [
    tokenField(state, "token", "watch the token", "as predicted"),
    make(
      "label",
      { class: "inline" },
      make("input", {
        type: "checkbox",
        checked: Number(state.say) > 0,
        onchange: (event) => setState({ say: event.target.checked ? "20" : "0" }),
      }),
      " go on writing",
    ),
    button("Keep on every screen", async () => {
      draft.isKept = true;
      setState({ screen: "prompt" }, { isStep: true });
    }),
    button("Download the edit", async () => download("edit.zip", await askFile("edit", asked))),
    button("Download the question", async () => downloadJson("act.json", asked)),
    said,
  ];
}
