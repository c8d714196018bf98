// Trained systems: what each reached beside the published number, and where it looks.

import { make, panel } from "./dom.js";
import { ask, hasAnswer, isOffline } from "./ask.js";
import { brief } from "./figures.js";
import { empty, place } from "./place.js";
import { runPage } from "./run_page.js";
import { setState } from "./state.js";
import { traceView } from "./trace_view.js";

export function tracesScreen() {
  const main = place("traces", { waiting: "Looks for runs…" });
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
          savedTrace(state, await ask(`traces/${state.trace}`)),
        );
      else if (isOffline() && hasAnswer("trace", {}))
        main.fill("traces", async () => [
          make("h1", { class: "unseen" }, document.title),
          (await ask("trace")).map((trace, at) => traceView(state, trace, at)),
        ]);
      else main.fill("gallery", gallery);
    },
  };
}

async function gallery() {
  const [runs, traces] = await Promise.all([
    ask("runs").catch(() => []),
    ask("traces").catch(() => []),
  ]);
  if (!runs.length && !traces.length)
    return empty(
      "There are no runs and no traces here.",
      make(
        "p",
        { class: "hint" },
        make("code", {}, "saccade train RECIPE"),
        " makes a run; ",
        make("code", {}, "saccade view --runs FOLDER"),
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
  const figures =
    run.state === "done"
      ? [
          make(
            "p",
            { class: "figure" },
            make("b", { class: "number" }, brief(run.value)),
            ` ${run.metric}`,
          ),
          make(
            "p",
            { class: "soft" },
            run.published === null
              ? "nothing published beside it"
              : `published ${brief(run.published)}`,
          ),
        ]
      : [
          make(
            "p",
            { class: "figure soft" },
            run.state === "running" ? "still training" : "damaged",
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
      figures,
      make(
        "p",
        { class: "soft number" },
        [run.minutes ? `${run.minutes} minutes` : null, run.can_trace ? "can be watched" : null]
          .filter(Boolean)
          .join(" · "),
      ),
    ),
  );
}

function savedTrace(state, trace) {
  return [
    make("h1", { class: "unseen" }, `Trace ${state.trace}`),
    make(
      "button",
      { type: "button", class: "quiet", onclick: () => setState({ trace: "" }, { isStep: true }) },
      "All runs",
    ),
    traceView(state, trace),
  ];
}
