// Position x layer: the prediction of each layer, and the ranks of pinned tokens; or position x head: effects.

import { choice, make, panel } from "./dom.js";
import { empty, asyncView } from "./async_view.js";
import { attributionGrid, cellPanel, chosenCell } from "./attribution_grid.js";
import { tokenField } from "./measures.js";
import { positionGrid } from "./position_grid.js";
import { promptBox } from "./prompt_box.js";
import { aboutText, effectQuestion } from "./questions.js";
import { rankChart } from "./rank_chart.js";
import { setState } from "./state.js";
import { getStatus } from "./status.js";

const COLOURS = [
  ["probability", "probability of the token"],
  ["entropy", "entropy"],
];
let colouredBy = "probability";

export function positionsScreen() {
  const box = promptBox({ hasLens: false }),
    controls = make("div", { class: "controls" }),
    title = make("h2"),
    main = asyncView("positions", { waiting: "Computing every position…" }),
    ranks = asyncView("ranks"),
    exact = asyncView("exact", { waiting: "Measuring…" });
  const node = make(
    "div",
    { class: "screen screen-positions" },
    make("h1", { class: "visually-hidden" }, "Positions"),
    box,
    panel(
      null,
      make(
        "div",
        { class: "panel-head" },
        title,
        controls,
      ),
      main,
    ),
    panel(null, ranks),
    exact,
  );
  const showEffects = (state) => {
    const question = effectQuestion(state);
    if (!controls.contains(document.activeElement) || !controls.dataset.isEffects)
      controls.replaceChildren(
        kindChoice(state),
        tokenField(state, "token", "on the token", "as predicted"),
        tokenField(state, "against", "against", "the mean logit"),
      );
    controls.dataset.isEffects = "yes";
    main.fill(JSON.stringify(["effects", question]), () => attributionGrid(state, question));
    if (chosenCell(state))
      exact.fill(JSON.stringify([question, state.cell]), () => cellPanel(state, question));
  };
  const update = (state) => {
    box.update(state);
    const isEffects = state.shows === "effects";
    ranks.parentElement.hidden = !state.text || isEffects;
    exact.hidden = !isEffects || !chosenCell(state);
    title.textContent = isEffects ? "Effect of each head at each token" : "Prediction of each layer";
    if (!state.text) {
      main.clear();
      main.append(empty("Type a text to follow it through the layers."));
      return;
    }
    if (isEffects) {
      showEffects(state);
      return;
    }
    controls.replaceChildren(
      kindChoice(state),
      siteChoice(state),
      lensOfStream(state),
      make(
        "label",
        { class: "inline" },
        "coloured by ",
        choice(
          COLOURS,
          colouredBy,
          (value) => {
            colouredBy = value;
            update(state);
          },
          "coloured by",
        ),
      ),
    );
    delete controls.dataset.isEffects;
    const question = positionsQuestion(state);
    main.fill(JSON.stringify([question, colouredBy]), () =>
      positionGrid(state, question, colouredBy),
    );
    const key = JSON.stringify([question, state.pins, state.at]);
    ranks.fill(key, () => rankChart(state, question));
  };
  return { node, update };
}

const KINDS = [
  ["", "prediction of each layer"],
  ["effects", "effect of each head"],
];

function kindChoice(state) {
  const chosen = state.shows === "effects" ? "effects" : "";
  return make(
    "label",
    { class: "inline" },
    "shows ",
    choice(KINDS, chosen, (shows) => setState({ shows }), "shows"),
  );
}

// "29.0" comes from the screen of a head: only the number of the head matters here.
function headNumber(state) {
  const number = state.head.split(".").pop();
  return /^\d+$/.test(number) ? Number(number) : null;
}

function positionsQuestion(state) {
  const head = headNumber(state),
    status = getStatus(),
    isStream = head === null;
  const lens = isStream
    ? (status?.residual_lenses ?? []).includes(state.lens) && state.lens
    : (status?.lenses ?? []).includes(state.lens) && state.lens;
  return { ...aboutText(state), head, lens: lens || null };
}

function siteChoice(state) {
  const most = Math.max(0, ...(getStatus()?.model?.layers ?? []).map((each) => each.n_heads));
  const options = [
    ["", "residual stream"],
    ...Array.from({ length: most }, (_, head) => [String(head), `head ${head} of each layer`]),
  ];
  const chosen = headNumber(state);
  return make(
    "label",
    { class: "inline" },
    "reads ",
    choice(
      options,
      chosen === null ? "" : String(chosen),
      (head) => setState({ head, lens: "" }),
      "reads",
    ),
  );
}

function lensOfStream(state) {
  const isStream = headNumber(state) === null,
    status = getStatus();
  const names = isStream ? (status?.residual_lenses ?? []) : (status?.lenses ?? []);
  const options = isStream
    ? [["", "unembedding"], ...names.map((name) => [name, name])]
    : names.map((name, at) => [at ? name : "", name]);
  if (options.length < 2) return "";
  return make(
    "label",
    { class: "inline" },
    "through ",
    choice(options, state.lens, (lens) => setState({ lens }), "through"),
  );
}
