// A trace over an image: the path of the glimpses, and what was seen or drawn, step by step.

import { make, makeSvg, printable } from "./dom.js";
import { themeColour } from "./colours.js";
import { svgSurface, svgRoot } from "./drawing.js";

const SIDE = 360,
  WIDEST = 1080, // pixels: a film strip is far wider than high
  PACE = 700; // milliseconds per step

export function imageTrace(trace, { step = 0, onstep = () => {} }) {
  const n = Math.max(trace.steps.length, trace.outlines?.length ?? 0),
    state = { step: Math.min(step, n - 1), timer: 0 };
  const picture = make("div", { class: "picture gaze" }),
    caption = make("p", { class: "gaze-caption", role: "status" });
  const range = make("input", {
    type: "range",
    min: 0,
    max: n - 1,
    step: 1,
    "aria-label": "step",
    oninput: () => go(Number(range.value)),
  });
  const play = make(
    "button",
    { type: "button", onclick: () => (state.timer ? pause() : start()) },
    "Play",
  );
  const rows = Object.entries(trace.pictures ?? {}).map(([name, pictures]) =>
    filmStrip(name, pictures, (at) => go(at)),
  );
  if (trace.heat) rows.unshift(sentence(trace.steps, (at) => stepBy(at - state.step)));
  function go(at) {
    state.step = Math.max(0, Math.min(n - 1, at));
    range.value = state.step;
    picture.replaceChildren(drawing(trace, state.step));
    caption.replaceChildren(
      make("b", {}, `Step ${state.step + 1} of ${n}`),
      ` ${trace.steps[state.step] ?? ""}`,
    );
    rows.forEach((row) => row.mark(state.step));
    onstep(state.step);
  }
  function pause() {
    clearInterval(state.timer);
    state.timer = 0;
    play.textContent = "Play";
  }
  function start() {
    if (state.step === n - 1) go(0);
    play.textContent = "Pause";
    state.timer = setInterval(() => {
      if (!picture.isConnected || state.step === n - 1) pause();
      else go(state.step + 1);
    }, PACE);
  }
  const stepBy = (by) => {
    pause();
    go(state.step + by);
  };
  go(state.step);
  const controls = make(
    "div",
    { class: "controls player" },
    stepButton("‹", "previous step", () => stepBy(-1)),
    play,
    stepButton("›", "next step", () => stepBy(1)),
    range,
  );
  return make(
    "div",
    { class: "gaze-parts" },
    make("div", { class: "gaze-main" }, picture, controls, caption),
    rows.length ? make("div", { class: "film" }, rows) : null,
  );
}

function stepButton(sign, title, onclick) {
  return make("button", { type: "button", class: "quiet", "aria-label": title, onclick }, sign);
}

// The image, the windows of this step, and the path of the glimpses so far.
function drawing(trace, step) {
  const image = trace.kind === "canvas" ? trace.pictures.canvas[step] : trace.image;
  const { href, rows, columns, isGrey } = pictureOf(image),
    isInverted = trace.heat && isGrey, // inverted: dark cells would not be visible on black
    scale = Math.min(SIDE / Math.min(rows, columns), WIDEST / Math.max(rows, columns));
  const width = columns * scale,
    height = rows * scale,
    svg = svgRoot(width, height, `The image and its attention at step ${step + 1}`),
    surface = svgSurface(svg);
  svg.append(
    makeSvg("image", {
      href,
      width,
      height,
      style: { "image-rendering": "pixelated", ...(isInverted ? { filter: "invert(1)" } : {}) },
    }),
  );
  shade(surface, trace.heat?.[step], width, height);
  const at = ([x, y]) => [((x + 1) / 2) * width, ((y + 1) / 2) * height];
  const centres = (trace.outlines ?? [])
    .slice(0, step + 1)
    .filter((windows) => windows.length)
    .map(([main]) => at(middle(main)));
  if (centres.length > 1)
    surface.path(`M ${centres.map((point) => point.join(" ")).join(" L ")}`, {
      stroke: themeColour("gaze"),
      width: 2.5,
      opacity: 0.9,
    });
  centres.forEach(([x, y], i) =>
    surface.rect(x - 3.5, y - 3.5, 7, 7, i === centres.length - 1 ? themeColour("gaze") : themeColour("paper"), {
      radius: 3.5,
      stroke: themeColour("gaze"),
      line: 2,
    }),
  );
  (trace.outlines?.[step] ?? []).forEach((corners, i) =>
    surface.path(`M ${corners.map((corner) => at(corner).join(" ")).join(" L ")} Z`, {
      stroke: themeColour("gaze"),
      width: i ? 1.5 : 2.5,
      dash: i ? "5 4" : "",
    }),
  );
  return svg;
}

// Attention over a grid of cells: cells with little weight are dark.
function shade(surface, heat, width, height) {
  if (!heat) return;
  const most = Math.max(1e-9, ...heat.flat()),
    [high, wide] = [height / heat.length, width / heat[0].length];
  heat.forEach((row, y) =>
    row.forEach((weight, x) => {
      const opacity = 0.72 * (1 - weight / most);
      const cell = surface.rect(x * wide, y * high, wide, high, themeColour("shade"), { opacity });
      cell.setAttribute("shape-rendering", "crispEdges"); // no gaps between cells
    }),
  );
}

function middle(corners) {
  return [0, 1].map(
    (axis) => corners.reduce((sum, corner) => sum + corner[axis], 0) / corners.length,
  );
}

// A picture is rows of numbers from 0 to 1; in a saved file it is a PNG.
function pictureOf(image) {
  if (image.png)
    return { href: image.png, rows: image.height, columns: image.width, isGrey: image.is_grey };
  const rows = image.length,
    columns = image[0].length,
    canvas = make("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d"),
    data = context.createImageData(columns, rows);
  image.forEach((row, y) =>
    row.forEach((value, x) => {
      const [r, g, b] = Array.isArray(value) ? value : [value, value, value];
      data.data.set([255 * r, 255 * g, 255 * b, 255], 4 * (y * columns + x));
    }),
  );
  context.putImageData(data, 0, 0);
  return { href: canvas.toDataURL(), rows, columns, isGrey: !Array.isArray(image[0][0]) };
}

// The words that were produced, one per step; pointing at one shows its step.
function sentence(steps, onchoose) {
  const words = steps.map((text, at) =>
    make(
      "button",
      {
        type: "button",
        class: "token",
        onclick: () => onchoose(at),
        onpointerenter: () => onchoose(at),
        onfocus: () => onchoose(at),
      },
      printable(text),
    ),
  );
  const row = make(
    "div",
    { class: "sides", role: "group", "aria-label": "Produced" },
    make("div", {}, make("h3", {}, "Produced"), make("p", { class: "running" }, words)),
  );
  row.mark = (at) =>
    words.forEach((word, index) => word.setAttribute("aria-pressed", String(index === at)));
  return row;
}

function filmStrip(name, pictures, onchoose) {
  const buttons = pictures.map((picture, at) =>
    make(
      "button",
      { type: "button", "aria-label": `${name}, step ${at + 1}`, onclick: () => onchoose(at) },
      make("img", { src: pictureOf(picture).href, alt: "" }),
    ),
  );
  const row = make(
    "div",
    { class: "film-row", role: "group", "aria-label": name },
    make("h3", {}, name),
    make("div", { class: "film-strip" }, buttons),
  );
  row.mark = (at) =>
    buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(index === at)));
  return row;
}
