// The frame of the page: screens, theme, how far the model is.

import { make } from "./dom.js";
import { ask, askFor, hasRoute, inlinedState, isOffline, waited } from "./ask.js";
import { getState, onState, setState, startState, tellAll } from "./state.js";
import { isDark } from "./colours.js";
import { draft } from "./draft.js";
import { hideTip } from "./tip.js";
import { saveMenu } from "./save_menu.js";
import { keptEdit } from "./kept_edit.js";
import { getStatus, setStatus } from "./status.js";
import { promptScreen } from "./screen_prompt.js";
import { headScreen } from "./screen_head.js";
import { positionsScreen } from "./screen_positions.js";
import { compareScreen } from "./screen_compare.js";
import { actScreen } from "./screen_act.js";
import { lensesScreen } from "./screen_lenses.js";
import { tracesScreen } from "./screen_traces.js";

// Each with the routes that it is about: a file that holds no answer of them does not offer it.
const SCREENS = {
  prompt: ["Prompt", promptScreen, "reading"],
  head: ["Head", headScreen, "reading"],
  positions: ["Positions", positionsScreen, "positions"],
  compare: ["Compare", compareScreen, "compare"],
  act: ["Act", actScreen, "act"],
  lenses: ["Lenses", lensesScreen, "lenses"],
  traces: ["Traces", tracesScreen, "trace", "traces", "runs"],
};
const made = {};
let inSight = null;

function show(state) {
  const name = screenOf(state);
  made[name] ??= SCREENS[name][1]();
  if (name !== inSight) {
    inSight = name;
    hideTip();
    askFor(name);
    const main = document.getElementById("main"),
      hadFocus = main.contains(document.activeElement);
    main.replaceChildren(keptEdit(), made[name].node);
    if (hadFocus) main.focus({ preventScroll: true }); // whoever came by keyboard goes on from here
    if (!isOffline()) document.title = `saccade: ${SCREENS[name][0].toLowerCase()}`;
  }
  for (const link of document.querySelectorAll("#screens a")) {
    if (link.dataset.screen === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  made[name].update(state);
}

// Without a model there are only runs and traces to begin with.
function screenOf({ screen, text }) {
  if (getStatus()?.state === "none" && screen === "prompt" && !text) return "traces";
  return SCREENS[screen] ? screen : "prompt";
}

function navigation() {
  const offered = Object.entries(SCREENS).filter(([, [, , ...routes]]) => hasRoute(...routes));
  if (offered.length < 2) return [];
  return offered.map(([name, [title]]) =>
    make(
      "a",
      {
        href: `#screen=${name}`,
        "data-screen": name,
        onclick: (event) => {
          event.preventDefault();
          go(name);
        },
      },
      title,
    ),
  );
}

function go(name) {
  const { screen, changes } = getState(),
    isLeaving = screen === "act" && name !== "act" && !draft.isKept;
  if (isLeaving) draft.changes = changes;
  setState({ screen: name, ...(isLeaving ? { changes: "" } : {}) }, { isStep: true });
  scrollTo(0, 0);
}

function themeButton() {
  const button = make("button", {
    type: "button",
    class: "tool",
    onclick: () => setState({ theme: isDark() ? "light" : "dark" }),
  });
  const name = () => button.replaceChildren(isDark() ? "Light" : "Dark");
  onState(name);
  return button;
}

// The theme is part of the link, so that a picture for a talk comes back as it was.
function setTheme({ theme }) {
  const root = document.documentElement,
    before = isDark();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  else delete root.dataset.theme;
  if (isDark() !== before) redrawAll();
}

// What is drawn with colours of its own is drawn anew; the rest follows the style sheet.
function redrawAll() {
  for (const name of Object.keys(made)) delete made[name];
  inSight = null;
}

// Asks how far the model is until it is open. The page can be used before: what needs the model waits.
async function watchOpening() {
  for (;;) {
    let status;
    try {
      status = await ask("status");
    } catch (error) {
      status = {
        state: "failed",
        problem: { error: error.message, hint: error.hint },
        lenses: [],
        examples: [],
      };
    }
    setStatus(status);
    showOpening(status);
    if (status.state !== "opening") return tellAll();
    await waited(400);
  }
}

function showOpening({ state, opening, problem }) {
  const line = document.getElementById("opening");
  line.className = state;
  if (state === "opening") {
    const bar = make("progress", { max: opening?.total || 1, "aria-label": "opening the model" });
    if (opening?.total) bar.value = opening.done;
    line.replaceChildren(bar, opening?.what ?? "opens the model");
  } else if (state === "failed")
    line.replaceChildren(
      make("b", {}, problem?.error ?? "the model could not be opened"),
      ` ${problem?.hint ?? ""}`,
    );
  else line.replaceChildren();
}

function begin() {
  startState(inlinedState());
  onState(setTheme); // first: the others ask which it is
  document.getElementById("screens").append(...navigation());
  document.getElementById("tools").append(themeButton(), saveMenu());
  document.body.classList.toggle("offline", isOffline());
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    redrawAll();
    tellAll();
  });
  onState(show);
  setTheme(getState());
  watchOpening();
  tellAll();
}

begin();
