// The menu that saves a view: link, JSON, pictures, or a file that works offline.

import { make } from "./dom.js";
import { requestFile, request, isOffline, questionsOnScreen } from "./api.js";
import { download, downloadJson, pngOf, svgText } from "./files.js";
import { changesOf, getState, writeLink } from "./state.js";
import { themeColour } from "./colours.js";

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
            const message = await work().catch((error) => error.message);
            if (!message) {
              box.open = false;
              return;
            }
            list.querySelector("output").textContent = message;
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
    return link; // no clipboard: the user copies it by hand
  }
}

function currentQuestions() {
  const state = getState();
  return questionsOnScreen({ ...state, changes: JSON.stringify(changesOf(state)) });
}

async function saveHtml() {
  const state = Object.fromEntries(Object.entries(getState()).filter(([, value]) => value !== ""));
  const questions = currentQuestions().slice(-MOST);
  download(nameFor(".html"), await requestFile("save", { state, questions }));
}

async function saveJson() {
  const questions = currentQuestions();
  const answers = await Promise.all(
    questions.map(async ({ route, question }) => ({
      route,
      question,
      answer: await request(route, question),
    })),
  );
  downloadJson(nameFor(".json"), { state: getState(), answers });
}

// One file per visible picture; a canvas is redrawn as SVG, all of it.
async function savePictures(kind) {
  const frames = [...document.querySelectorAll("#main .picture")].filter(
    (frame) => frame.offsetParent !== null,
  );
  if (!frames.length) return "There is no picture on this screen.";
  for (const [at, frame] of frames.entries()) {
    const grid = frame.querySelector(".grid");
    const svg = frame.picture?.() ?? grid?.picture?.() ?? frame.querySelector("svg");
    if (!svg) continue;
    const name = nameFor(`${frames.length > 1 ? `-${at + 1}` : ""}.${kind}`),
      ground = themeColour("paper");
    download(
      name,
      kind === "svg"
        ? new Blob([svgText(svg, ground)], { type: "image/svg+xml" })
        : await pngOf(svg, ground),
    );
  }
  return "";
}
