// A trace: input and output as text, its weights as a matrix, its heads or hops to choose from.

import { make, panel, printable } from "./dom.js";
import { scaleOf } from "./colours.js";
import { matrix } from "./matrix.js";
import { percent } from "./number_format.js";
import { hopsTable, lattice } from "./trace_kinds.js";
import { imageTrace } from "./trace_image.js";
import { getState, setState } from "./state.js";

const LATTICES = ["lattice", "outputs"];

// at: index among several traces of one system; the link has a view and a step for each.
export function traceView(state, given, at = 0) {
  const trace = given.kind === "document" ? withAll(given) : given;
  const title = trace.title ? `${capital(trace.kind)}: ${trace.title}` : capital(trace.kind);
  if (trace.image)
    return panel(
      title,
      imageTrace(trace, {
        step: numberAt(state.step, at),
        onstep: (step) => setState({ step: withNumber("step", at, step) }),
      }),
    );
  const body = make("div", { class: "trace" }),
    node = panel(title, body),
    views = viewsOf(trace);
  const chosen = {
    view: Math.min(views.length - 1, numberAt(state.view, at)),
    step: numberAt(state.step, at),
  };
  // Keyboard focus stays at the choice.
  const choose = (key, value) => {
    chosen[key] = value;
    setState({ [key]: withNumber(key, at, value) });
    draw();
    body.querySelectorAll(key === "step" ? ".sides button" : ".thumbnails button")[value]?.focus();
  };
  const draw = () => {
    const { weights } = views[chosen.view],
      isLattice = LATTICES.includes(trace.kind),
      isText = trace.kind === "document";
    const sides = twoSides(trace, weights, chosen, (step) => choose("step", step));
    const small =
      views.length > 1 ? thumbnails(views, chosen.view, (view) => choose("view", view)) : null;
    const picture = isLattice
      ? lattice(trace, weights)
      : isText
        ? null // a matrix as wide as a document shows no more than its words
        : mainPicture(trace, weights, chosen, sides.point);
    body.replaceChildren(
      ...(isLattice ? [] : [sides]),
      make("div", { class: "trace-parts" }, picture, small),
    );
  };
  draw();
  return node;
}

// A document is read by all words of a question: their mean comes first.
function withAll(trace) {
  const { steps, weights } = trace;
  if (steps.length < 2 || trace.views?.length) return trace;
  const mean = trace.memory.map((_, at) => sum(weights.map((row) => row[at])) / steps.length);
  return { ...trace, steps: ["all", ...steps], weights: [mean, ...weights] };
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function numberAt(list, at) {
  return Number((list || "").split(",")[at]) || 0;
}

function withNumber(key, at, value) {
  const list = (getState()[key] || "").split(",");
  while (list.length <= at) list.push("0");
  list[at] = String(value);
  return list.every((each) => !Number(each))
    ? key === "view"
      ? "0"
      : ""
    : list.map((each) => each || "0").join();
}

// All views; if there are several, their mean comes first.
function viewsOf(trace) {
  if (!trace.views?.length) return [{ name: "", weights: trace.weights }];
  const each = trace.views.map((name, at) => ({ name, weights: trace.weights[at] }));
  if (each.length < 2) return each;
  const mean = each[0].weights.map((row, step) =>
    row.map((_, index) => sum(each.map((view) => view.weights[step][index])) / each.length),
  );
  return [{ name: "mean of all", weights: mean }, ...each];
}

function mainPicture(trace, weights, chosen, point) {
  if (trace.kind === "hops") return hopsTable(trace, chosen.step);
  return matrix({
    weights,
    rows: trace.steps.map(printable),
    columns: trace.memory.map(printable),
    title: `Weights of ${trace.kind}`,
    onpoint: (row) => point(row),
    cursor: { row: chosen.step, column: 0 },
    height: 880,
  });
}

// The output, and what each of its steps read: the position with most weight is darkest.
function twoSides(trace, weights, chosen, onchoose) {
  const isLong = trace.memory.some((label) => label.length > 24);
  const steps = trace.steps.map((text, step) =>
    make(
      "button",
      {
        type: "button",
        class: "token",
        "aria-pressed": String(step === chosen.step),
        onclick: () => onchoose(step),
        onpointerenter: () => point(step),
        onfocus: () => point(step),
      },
      printable(text),
    ),
  );
  const memory = trace.memory.map((text) => make("span", { class: "token" }, printable(text)));
  const caption = make("p", { class: "note", role: "status" });
  const isText = trace.kind === "document";
  function point(step) {
    const row = weights[step] ?? [],
      // In a document every weight is small: the largest one is darkest.
      scale = scaleOf([], { low: 0, high: isText ? Math.max(1e-9, ...row) : 1, root: true }),
      most = [...row.keys()]
        .sort((a, b) => row[b] - row[a])
        .slice(0, 3)
        .filter((index) => row[index] > 0.005);
    memory.forEach((node, index) => {
      const weight = row[index] ?? 0;
      node.style.background = scale.colour(weight);
      node.style.color = scale.textColour(weight);
    });
    steps.forEach((node, index) => node.classList.toggle("here", index === step));
    const read = most.flatMap((index) => [
      make("span", { class: "token" }, printable(trace.memory[index])),
      ` ${percent(row[index], 0)}  `,
    ]);
    caption.replaceChildren(
      make("b", { class: "token" }, printable(trace.steps[step] ?? "")),
      " reads ",
      ...read,
    );
  }
  point(chosen.step);
  const node = make(
    "div",
    { class: `sides${isText ? " document" : ""}` },
    make("div", {}, make("h3", {}, "Produced"), make("p", { class: "running" }, steps)),
    make(
      "div",
      {},
      make("h3", {}, "Read"),
      make(
        isLong ? "div" : "p",
        {
          class: `running${isLong ? " lines" : ""}`,
          tabindex: 0,
          role: "group",
          "aria-label": "Read",
        },
        memory,
      ),
    ),
    caption,
  );
  return Object.assign(node, { point });
}

function thumbnails(views, chosen, onchoose) {
  return make(
    "div",
    { class: "thumbnails", role: "group", "aria-label": "Views" },
    views.map(({ name, weights }, at) =>
      make(
        "button",
        { type: "button", "aria-pressed": String(at === chosen), onclick: () => onchoose(at) },
        thumbnail(weights),
        name,
      ),
    ),
  );
}

function thumbnail(weights) {
  const width = Math.max(1, ...weights.map((row) => row.length)),
    canvas = make("canvas", { width, height: weights.length, "aria-hidden": "true" });
  const context = canvas.getContext("2d"),
    image = context.createImageData(width, weights.length),
    scale = scaleOf([], { low: 0, high: 1, root: true });
  weights.forEach((row, y) =>
    row.forEach((weight, x) => image.data.set([...scale.parts(weight), 255], 4 * (y * width + x))),
  );
  context.putImageData(image, 0, 0);
  return canvas;
}
