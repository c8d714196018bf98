// The head map with the choice of a measure, for two screens.

import { make, panel } from "./dom.js";
import { request } from "./api.js";
import { headMap } from "./head_map.js";
import { measureControls, measured } from "./measures.js";
import { asyncView } from "./async_view.js";
import { readingQuestion } from "./questions.js";
import { getState } from "./state.js";

// The values of a map; null if there is no reading: the text above shows the error, unless a token is to blame.
export async function mapValues(state, onjob = () => {}) {
  const reading = await request("reading", readingQuestion(state)).catch((error) => {
    if (state.token || state.against) throw error;
    return null;
  });
  return reading && { reading, found: await measured(state, reading, onjob) };
}

export function mapKey(state) {
  return JSON.stringify([readingQuestion(state), state.measure, state.words]);
}

// update(state, chosen): the chosen head is outlined.
export function mapPanel() {
  const controls = make("div"),
    map = asyncView("map", { waiting: "Reading every head…" });
  const node = panel(
    null,
    make("div", { class: "panel-head" }, make("h2", {}, "Heads"), controls),
    map,
  );
  const showJob = (job) => {
    map.dataset.job = `${job.what} ${job.done} of ${job.total}`;
  };
  node.update = (state, chosen = "") => {
    const show = (reading) => {
      // A field with the focus stays; its value is in the state anyway.
      if (controls.dataset.of !== state.measure || !controls.contains(document.activeElement))
        controls.replaceChildren(measureControls(state, reading));
      controls.dataset.of = state.measure;
    };
    if (!controls.childElementCount) show(null);
    map.fill(mapKey(state), async () => {
      try {
        const both = await mapValues(state, showJob);
        if (both && mapKey(getState()) === mapKey(state)) show(both.reading);
        return both && headMap({ ...state, head: chosen }, both.reading, both.found);
      } finally {
        delete map.dataset.job;
      }
    });
    map.querySelector(".picture")?.map.choose(chosen);
  };
  return node;
}
