// The head map with its choice of a measure, as two screens show it.

import { make, panel } from "./dom.js";
import { ask } from "./ask.js";
import { headMap } from "./head_map.js";
import { measureControls, measured } from "./measures.js";
import { place } from "./place.js";
import { readingQuestion } from "./questions.js";

// What a map is drawn from; null where there is no reading, which the text above it tells about.
export async function mapFigures(state, onjob = () => {}) {
  const reading = await ask("reading", readingQuestion(state)).catch(() => null);
  return reading && { reading, found: await measured(state, reading, onjob) };
}

export function mapKey(state) {
  const { measure, token, against, words, ablate } = state;
  return JSON.stringify([readingQuestion(state), measure, token, against, words, ablate]);
}

// update(state, chosen): the chosen head is outlined.
export function mapPanel() {
  const controls = make("div"),
    map = place("map", { waiting: "Reads every head…" });
  const node = panel(
    null,
    make("div", { class: "panel-head" }, make("h2", {}, "Heads"), controls),
    map,
  );
  const tellJob = (job) => {
    map.dataset.job = `${job.what} ${job.done} of ${job.total}`;
  };
  node.update = (state, chosen = "") => {
    // A field that is being typed into stays; its value is the state's anyway.
    if (controls.dataset.of !== state.measure || !controls.contains(document.activeElement))
      controls.replaceChildren(measureControls(state));
    controls.dataset.of = state.measure;
    map.fill(mapKey(state), async () => {
      try {
        const both = await mapFigures(state, tellJob);
        return both && headMap({ ...state, head: chosen }, both.reading, both.found);
      } finally {
        delete map.dataset.job;
      }
    });
    map.querySelector(".picture")?.map.choose(chosen);
  };
  return node;
}
