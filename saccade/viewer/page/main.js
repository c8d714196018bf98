// The frame of the page: screens, theme, progress of the model.

import { make } from "./dom.js";
import { request, setScreen, hasRoute, inlinedState, isOffline, delay } from "./api.js";
import { getState, onState, setState, startState, notifyAll } from "./state.js";
import { isDark } from "./colours.js";
import { draft } from "./draft.js";
import { hideTooltip } from "./tooltip.js";
import { saveMenu } from "./save_menu.js";
import { appliedEdit } from "./applied_edit.js";
import { getStatus, setStatus } from "./status.js";
import { promptScreen } from "./screen_prompt.js";
import { headScreen } from "./screen_head.js";
import { positionsScreen } from "./screen_positions.js";
import { flowScreen } from "./screen_flow.js";
import { generateScreen } from "./screen_generate.js";
import { compareScreen } from "./screen_compare.js";
import { actScreen } from "./screen_act.js";
import { atlasScreen } from "./screen_atlas.js";
import { lensesScreen } from "./screen_lenses.js";
import { tracesScreen } from "./screen_traces.js";

// Each with its routes: a file without an answer of them does not offer the screen.
const SCREENS = {
  prompt: ["Prompt", promptScreen, "reading"],
  head: ["Head", headScreen, "reading"],
  positions: ["Positions", positionsScreen, "positions", "attribution"],
  flow: ["Flow", flowScreen, "flow"],
  generate: ["Generate", generateScreen, "generate"],
  compare: ["Compare", compareScreen, "compare"],
  act: ["Act", actScreen, "act"],
  atlas: ["Atlas", atlasScreen, "atlas"],
  lenses: ["Lenses", lensesScreen, "lenses"],
  traces: ["Traces", tracesScreen, "trace", "traces", "runs"],
};
const built = {};
let currentScreen = null;

function show(state) {
  const name = screenOf(state);
  built[name] ??= SCREENS[name][1]();
  if (name !== currentScreen) {
    currentScreen = name;
    hideTooltip();
    setScreen(name);
    const main = document.getElementById("main"),
      hadFocus = main.contains(document.activeElement);
    main.replaceChildren(appliedEdit(), built[name].node);
    if (hadFocus) main.focus({ preventScroll: true }); // keyboard users continue from here
    if (!isOffline()) document.title = `saccade: ${SCREENS[name][0].toLowerCase()}`;
  }
  for (const link of document.querySelectorAll("#screens a")) {
    if (link.dataset.screen === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  built[name].update(state);
}

// Without a model the first screen is the one of runs and traces.
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
    isLeaving = screen === "act" && name !== "act" && !draft.isApplied;
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

// The theme is part of the link, so that a link restores the same picture.
function setTheme({ theme }) {
  const root = document.documentElement,
    before = isDark();
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  else delete root.dataset.theme;
  if (isDark() !== before) redrawAll();
}

// Canvas and SVG have fixed colours and are redrawn; the rest follows the style sheet.
function redrawAll() {
  for (const name of Object.keys(built)) delete built[name];
  currentScreen = null;
}

// Polls the status until the model is open. The page works meanwhile: only parts that need the model wait.
async function watchOpening() {
  for (;;) {
    let status;
    try {
      status = await request("status");
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
    if (status.state !== "opening") return notifyAll();
    await delay(400);
  }
}

function showOpening({ state, opening, problem }) {
  const line = document.getElementById("opening");
  line.className = state;
  if (state === "opening") {
    const bar = make("progress", { max: opening?.total || 1, "aria-label": "opening the model" });
    if (opening?.total) bar.value = opening.done;
    line.replaceChildren(bar, opening?.what ?? "opening the model");
  } else if (state === "failed")
    line.replaceChildren(
      make("b", {}, problem?.error ?? "the model could not be opened"),
      ` ${problem?.hint ?? ""}`,
    );
  else line.replaceChildren();
}

function begin() {
  startState(inlinedState());
  onState(setTheme); // first: the other listeners use it
  document.getElementById("screens").append(...navigation());
  document.getElementById("tools").append(themeButton(), saveMenu());
  document.body.classList.toggle("offline", isOffline());
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    redrawAll();
    notifyAll();
  });
  onState(show);
  setTheme(getState());
  watchOpening();
  notifyAll();
}

begin();
