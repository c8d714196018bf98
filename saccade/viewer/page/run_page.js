// One run: its result beside the published number, its loss curve, and its traces of a text of the user's.

import { make, panel } from "./dom.js";
import { ask, isOffline } from "./ask.js";
import { brief, ticks } from "./figures.js";
import { lineChart, straight } from "./line_chart.js";
import { place } from "./place.js";
import { setState, stateWithout } from "./state.js";
import { traceView } from "./trace_view.js";

export function runPage() {
  const about = place("run-about", { waiting: "Opens the run…" }),
    form = make("div"),
    traces = place("run-traces", { waiting: "Runs the system…" });
  const back = make(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () =>
        setState(stateWithout(["run", "input", "view", "step", "trace"]), { isStep: true }),
    },
    "All runs",
  );
  const node = make("div", { class: "run-page" }, back, about, form, traces);
  return {
    node,
    async update(state) {
      about.fill(state.run, async () => aboutRun(await ask(`runs/${state.run}`)));
      const run = await ask(`runs/${state.run}`).catch(() => null);
      if (!run?.can_trace) {
        form.replaceChildren();
        traces.clear();
        return;
      }
      if (form.dataset.run !== state.run) {
        form.replaceChildren(inputForm(state, run));
        form.dataset.run = state.run;
      }
      const input = state.input || run.example;
      if (!input) return;
      traces.fill(JSON.stringify([state.run, input]), async () =>
        (await ask("trace", { run: state.run, input })).map((trace, at) =>
          traceView(state, trace, at),
        ),
      );
    },
  };
}

function inputForm(state, run) {
  const box = make("textarea", { rows: 2, spellcheck: "false", readonly: isOffline() });
  box.value = state.input || run.example || "";
  const submit = () => box.value.trim() && setState({ input: box.value, view: "0", step: "" });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      submit();
    }
  });
  return make(
    "form",
    {
      class: "prompt",
      onsubmit: (event) => {
        event.preventDefault();
        submit();
      },
    },
    make("label", { class: "field" }, make("span", {}, "What it works on"), box),
    isOffline() ? null : make("button", { type: "submit" }, "Trace"),
  );
}

function aboutRun(run) {
  return [make("h1", {}, run.name), make("div", { class: "two uneven" }, result(run), curves(run))];
}

function result(run) {
  const figure = (name, value, source = "") =>
    make(
      "div",
      {},
      make("dt", {}, name),
      make(
        "dd",
        {},
        make("b", { class: "number large" }, brief(value)),
        source ? make("small", { class: "soft" }, ` ${source}`) : null,
      ),
    );
  const facts = [
    ["system", run.system],
    ["weights", run.n_weights?.toLocaleString("en")],
    ["minutes", run.minutes],
    ["command", make("code", {}, run.command)],
    ["note", run.note],
  ];
  return panel(
    "Result",
    run.state === "done"
      ? make(
          "dl",
          { class: "facts" },
          figure(`ours, ${run.metric}`, run.value),
          run.published === null ? null : figure("published", run.published, run.source),
        )
      : make("p", { class: "note" }, "It is still training."),
    make(
      "dl",
      { class: "about" },
      facts
        .filter(([, value]) => value !== undefined && value !== null && value !== "")
        .map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
    ),
    make(
      "details",
      { class: "more" },
      make("summary", {}, "Settings"),
      make("pre", { tabindex: 0 }, JSON.stringify(run.settings, null, 1)),
    ),
  );
}

function curves(run) {
  const { step, loss, validation } = run.curve ?? { step: [], loss: [] };
  if (!step.length)
    return panel(
      "Loss",
      make("p", { class: "note" }, "It has no log: it is counted, not trained."),
    );
  const x = stepAxis(step),
    parts = [
      lineChart({
        series: [{ name: "loss", points: step.map((at, i) => [at, loss[i]]) }],
        x,
        y: valueAxis(loss),
        title: `Loss of ${run.name} by step`,
      }),
    ];
  for (const [name, values] of Object.entries(validation ?? {})) {
    if (name === "step" || values.length < 2) continue;
    const wanted =
      name === run.metric && run.published !== null && run.published !== undefined
        ? { value: run.published, name: "published" }
        : null;
    parts.push(
      lineChart({
        series: [{ name, points: validation.step.map((at, i) => [at, values[i]]) }],
        x,
        y: valueAxis([...values, ...(wanted ? [wanted.value] : [])]),
        title: `${name} on validation data by step`,
        height: 180,
        wanted,
      }),
    );
  }
  return panel("Training", parts);
}

function stepAxis(steps) {
  const most = Math.max(...steps);
  return straight(0, most, ticks(0, most, 4), (value) => value.toLocaleString("en"), "");
}

function valueAxis(values) {
  const known = values.filter((value) => Number.isFinite(value)),
    low = Math.min(0, ...known),
    high = Math.max(...known);
  return straight(low, high, ticks(low, high, 4), (value) => brief(value));
}
