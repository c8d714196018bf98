// Trained systems: the metric of each, the published value, and its traces.

import { make, panel } from "./dom.js";
import { request, hasAnswer, isOffline } from "./api.js";
import { brief } from "./number_format.js";
import { empty, asyncView } from "./async_view.js";
import { runPage } from "./run_page.js";
import { setState } from "./state.js";
import { traceView } from "./trace_view.js";

const UNFINISHED = {
  running: "still training",
  stopped: "stopped before its end",
};

export function tracesScreen() {
  const main = asyncView("traces", { waiting: "Looking for runs…" });
  const node = make("div", { class: "screen screen-traces" }, main);
  const run = runPage();
  return {
    node,
    update(state) {
      if (state.run) {
        main.fill(`run ${state.run}`, async () => run.node);
        run.update(state);
      } else if (state.trace)
        main.fill(`trace ${state.trace}`, async () =>
          savedTrace(state, await request(`traces/${state.trace}`)),
        );
      else if (isOffline() && hasAnswer("trace", {}))
        main.fill("traces", async () => [
          make("h1", { class: "visually-hidden" }, document.title),
          (await request("trace")).map((trace, at) => traceView(state, trace, at)),
        ]);
      else main.fill("gallery", gallery);
    },
  };
}

async function gallery() {
  const [runs, traces] = await Promise.all([
    request("runs").catch(() => []),
    request("traces").catch(() => []),
  ]);
  if (!runs.length && !traces.length)
    return empty(
      "There are no runs and no traces here.",
      make(
        "p",
        { class: "hint" },
        make("code", {}, "saccade train RECIPE"),
        " makes a run; ",
        make("code", {}, "saccade view FOLDER"),
        " shows a folder of them.",
      ),
    );
  return [
    make("h1", {}, "Runs"),
    runs.length ? make("ul", { class: "gallery" }, runs.map(runCard)) : null,
    traces.length
      ? panel(
          "Saved traces",
          make(
            "ul",
            { class: "plain" },
            traces.map((trace) =>
              make(
                "li",
                {},
                make(
                  "button",
                  {
                    type: "button",
                    class: "link",
                    onclick: () => setState({ trace: trace.name }, { isStep: true }),
                  },
                  trace.name,
                ),
                make(
                  "span",
                  { class: "soft" },
                  ` ${trace.kind}, ${trace.n_steps} steps ${trace.title}`,
                ),
              ),
            ),
          ),
        )
      : null,
  ];
}

function runCard(run) {
  const open = () =>
    setState({ run: run.name, input: "", trace: "", view: "0", step: "" }, { isStep: true });
  const metrics =
    run.state === "done"
      ? [
          make(
            "p",
            { class: "metric" },
            make("b", { class: "number" }, brief(run.value)),
            ` ${run.metric}`,
          ),
          make(
            "p",
            { class: "soft" },
            run.published === null
              ? "no published value"
              : `published ${brief(run.published)}`,
          ),
        ]
      : [
          make(
            "p",
            { class: "metric soft" },
            UNFINISHED[run.state] ?? "damaged",
          ),
          make("p", { class: "soft" }, run.note ?? ""),
        ];
  return make(
    "li",
    {},
    make(
      "button",
      {
        type: "button",
        class: `run is-${run.state}`,
        "data-run": run.name,
        onclick: open,
        disabled: run.state === "damaged",
      },
      make("h2", {}, run.name),
      make("p", { class: "soft" }, run.system ?? ""),
      metrics,
      make(
        "p",
        { class: "soft number" },
        [run.minutes ? `${run.minutes} minutes` : null, run.can_trace ? "can be traced" : null]
          .filter(Boolean)
          .join(" · "),
      ),
    ),
  );
}

function savedTrace(state, trace) {
  return [
    make("h1", { class: "visually-hidden" }, `Trace ${state.trace}`),
    make(
      "button",
      { type: "button", class: "quiet", onclick: () => setState({ trace: "" }, { isStep: true }) },
      "All runs",
    ),
    traceView(state, trace),
  ];
}
