// Change a head: the effect on the output, measured and predicted by the lens.

import { make, panel } from "./dom.js";
import { request, requestFile, isOffline } from "./api.js";
import { drawResult } from "./act_result.js";
import { changeEditor } from "./change_editor.js";
import { draft } from "./draft.js";
import { download, downloadJson } from "./files.js";
import { tokenField } from "./measures.js";
import { describeChange } from "./applied_edit.js";
import { empty, asyncView, problem } from "./async_view.js";
import { promptBox } from "./prompt_box.js";
import { headNamed } from "./questions.js";
import { changesOf, setState } from "./state.js";

export function actScreen() {
  const box = promptBox(),
    editor = make("div"),
    result = asyncView("result", { waiting: "Running the model twice…" }),
    files = make("div", { class: "controls" });
  const node = make(
    "div",
    { class: "screen screen-act" },
    make("h1", { class: "visually-hidden" }, "Act"),
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

// The changes of before; or, the first time, an ablation of the chosen head.
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
    question = actQuestion(state, changes);
  if (parts.shown !== state.changes) {
    parts.shown = state.changes;
    const focus = focusedField(editor);
    editor.replaceChildren(isOffline() ? changeList(changes) : changeEditor(changes, keepDraft));
    focus?.();
  }
  if (!files.contains(document.activeElement))
    files.replaceChildren(...(isOffline() ? [] : fileButtons(state, question, changes)));
  if (state.text && changes.length) {
    result.fill(JSON.stringify(question), async () => drawResult(await request("act", question)));
    return;
  }
  result.clear();
  result.append(empty(state.text ? "Add a change to see its effect." : "Type a text first."));
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

// Rows are rebuilt after each change; the focus stays in its field.
function focusedField(editor) {
  const fields = [...editor.querySelectorAll("select, input, button")],
    at = fields.indexOf(document.activeElement);
  return at < 0 ? null : () => [...editor.querySelectorAll("select, input, button")][at]?.focus();
}

function fileButtons(state, question, changes) {
  const output = make("output", { class: "soft" });
  const button = (title, work) =>
    make(
      "button",
      {
        type: "button",
        class: "quiet",
        onclick: async () => {
          output.replaceChildren();
          try {
            await work();
          } catch (error) {
            output.replaceChildren(problem(error));
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
      " generate a continuation",
    ),
    button("Apply on every screen", async () => {
      draft.isApplied = true;
      setState({ screen: "prompt" }, { isStep: true });
    }),
    button("Download the edit", async () =>
      download("edit.zip", await requestFile("edit", question)),
    ),
    button("Download the question", async () => downloadJson("act.json", question)),
    output,
  ];
}
