// One run: its result and the published value, its loss curve, and its traces on an input of the user.

import { make, panel } from "./dom.js";
import { request, isOffline } from "./api.js";
import { brief, ticks } from "./number_format.js";
import { lineChart, linearAxis } from "./line_chart.js";
import { asyncView } from "./async_view.js";
import { setState, stateWithout } from "./state.js";
import { traceView } from "./trace_view.js";

export function runPage() {
  const about = asyncView("run-about", { waiting: "Opening the run…" }),
    form = make("div"),
    traces = asyncView("run-traces", { waiting: "Running the system…" });
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
      about.fill(state.run, async () => aboutRun(await request(`runs/${state.run}`)));
      const run = await request(`runs/${state.run}`).catch(() => null);
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
        (await request("trace", { run: state.run, input })).map((trace, at) =>
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
    make("label", { class: "field" }, make("span", {}, "Input"), box),
    isOffline() ? null : make("button", { type: "submit" }, "Trace"),
  );
}

function aboutRun(run) {
  return [make("h1", {}, run.name), make("div", { class: "two uneven" }, result(run), curves(run))];
}

function result(run) {
  const metric = (name, value, source = "") =>
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
          metric(`this run, ${run.metric}`, run.value),
          run.published === null ? null : metric("published", run.published, run.source),
        )
      : make("p", { class: "note" }, "Still training."),
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
      make("p", { class: "note" }, "No training log: this model is counted, not trained."),
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
    const reference =
      name === run.metric && run.published !== null && run.published !== undefined
        ? { value: run.published, name: "published" }
        : null;
    parts.push(
      lineChart({
        series: [{ name, points: validation.step.map((at, i) => [at, values[i]]) }],
        x,
        y: valueAxis([...values, ...(reference ? [reference.value] : [])]),
        title: `${name} on validation data by step`,
        height: 180,
        reference,
      }),
    );
  }
  return panel("Training", parts);
}

function stepAxis(steps) {
  const most = Math.max(...steps);
  return linearAxis(0, most, ticks(0, most, 4), (value) => value.toLocaleString("en"), "");
}

function valueAxis(values) {
  const known = values.filter((value) => Number.isFinite(value)),
    low = Math.min(0, ...known),
    high = Math.max(...known);
  return linearAxis(low, high, ticks(low, high, 4), (value) => brief(value));
}
