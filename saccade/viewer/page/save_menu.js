// Every view has a link, its JSON, its pictures, and a file that works offline.

import { make } from "./dom.js";
import { askFile, ask, isOffline, questionsInSight } from "./ask.js";
import { download, downloadJson, pngOf, svgText } from "./files.js";
import { changesOf, getState, writeLink } from "./state.js";
import { ink } from "./colours.js";

const MOST = 64; // answers in one file

export function saveMenu() {
  const list = make("div", { class: "menu", role: "group", "aria-label": "Save" });
  const box = make("details", { class: "save" }, make("summary", { class: "tool" }, "Save"), list);
  const add = (title, work) =>
    list.append(
      make(
        "button",
        {
          type: "button",
          onclick: async () => {
            const said = await work().catch((error) => error.message);
            if (!said) {
              box.open = false;
              return;
            }
            list.querySelector("output").textContent = said;
          },
        },
        title,
      ),
    );
  add("Copy link", copyLink);
  if (!isOffline()) add("As one HTML file", saveHtml);
  add("JSON", saveJson);
  add("PNG", () => savePictures("png"));
  add("SVG", () => savePictures("svg"));
  list.append(make("output", {}));
  box.addEventListener("toggle", () => {
    list.querySelector("output").textContent = "";
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      box.open = false;
      box.querySelector("summary").focus();
    }
  });
  document.addEventListener("pointerdown", (event) => {
    if (!box.contains(event.target)) box.open = false;
  });
  return box;
}

function nameFor(ending) {
  const { screen, head, run } = getState();
  return (
    ["saccade", screen, run, head]
      .filter(Boolean)
      .join("-")
      .replace(/[^\w.-]+/g, "_") + ending
  );
}

async function copyLink() {
  const link = `${location.href.split("#")[0]}#${writeLink(getState())}`;
  try {
    await navigator.clipboard.writeText(link);
    return "The link is in the clipboard.";
  } catch {
    return link; // no clipboard here: it can be copied by hand
  }
}

function inSight() {
  const state = getState();
  return questionsInSight({ ...state, changes: JSON.stringify(changesOf(state)) });
}

async function saveHtml() {
  const state = Object.fromEntries(Object.entries(getState()).filter(([, value]) => value !== ""));
  download(nameFor(".html"), await askFile("save", { state, questions: inSight().slice(-MOST) }));
}

async function saveJson() {
  const asked = inSight();
  const answers = await Promise.all(
    asked.map(async ({ route, question }) => ({
      route,
      question,
      answer: await ask(route, question),
    })),
  );
  downloadJson(nameFor(".json"), { state: getState(), answers });
}

// Each picture in sight, one file each; those drawn on a canvas are drawn anew as SVG, whole.
async function savePictures(kind) {
  const frames = [...document.querySelectorAll("#main .picture")].filter(
    (frame) => frame.offsetParent !== null,
  );
  if (!frames.length) return "Nothing here is a picture.";
  for (const [at, frame] of frames.entries()) {
    const grid = frame.querySelector(".grid");
    const svg = frame.picture?.() ?? grid?.picture?.() ?? frame.querySelector("svg");
    if (!svg) continue;
    const name = nameFor(`${frames.length > 1 ? `-${at + 1}` : ""}.${kind}`),
      ground = ink("paper");
    download(
      name,
      kind === "svg"
        ? new Blob([svgText(svg, ground)], { type: "image/svg+xml" })
        : await pngOf(svg, ground),
    );
  }
  return "";
}
