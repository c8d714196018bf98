// The atlas: what every head does, knows and looks at over a text. All heads, or the page of one.

import { make } from "./dom.js";
import { hasAnswer, request, siteFile, siteNames } from "./api.js";
import { asyncView, empty } from "./async_view.js";
import { atlasHead } from "./atlas_head.js";
import { atlasOverview } from "./atlas_overview.js";
import { headLink } from "./head_link.js";
import { getState, setState } from "./state.js";
import { isReady } from "./status.js";

export function atlasScreen() {
  const main = asyncView("atlas", { waiting: "Reading the atlas…" }),
    bar = asyncView("atlas-bar");
  const node = make("div", { class: "screen screen-atlas" }, bar, main);
  let shown = null; // what the view shows now
  return {
    node,
    update(state) {
      const isHead = /^\d+\.\d+$/.test(state.head) && hasAnswer(`atlas/${state.head}`, {}),
        key = `${isHead ? state.head : ""} ${isReady()}`;
      if (isHead) bar.fill(key, () => barOf(state.head));
      else bar.clear();
      if (shown?.key === key) {
        shown.view.update?.(state);
        return;
      }
      shown = null;
      main.fill(key, async () => {
        const view = await (isHead ? page(state.head) : overview());
        shown = { key, view };
        view.update?.(getState());
        return view.node;
      });
    },
  };
}

// To all heads, and to the heads before and after this one.
async function barOf(name) {
  const names = siteNames() ?? (await namesHere()),
    at = names.indexOf(name);
  const link = (to, text) => (to === undefined ? null : headLink(to, {}, text));
  return make(
    "nav",
    { "aria-label": "Heads of the atlas" },
    siteFile() || hasAnswer("atlas", {}) ? allHeads() : null,
    at < 0 ? null : [link(names[at - 1], `← ${names[at - 1]}`), link(names[at + 1], `${names[at + 1]} →`)],
  );
}

async function namesHere() {
  if (!hasAnswer("atlas", {})) return [];
  const { atlas } = await request("atlas").catch(() => ({ atlas: null })); // the page tells the error
  return atlas?.heads.map(({ name }) => name) ?? [];
}

function allHeads() {
  const file = siteFile();
  if (file) return make("a", { href: file }, "All heads");
  const back = () => setState({ head: "", context: "0" }, { isStep: true });
  return make("button", { type: "button", class: "quiet", onclick: back }, "All heads");
}

async function overview() {
  const { atlas, error, hint } = await request("atlas");
  if (atlas) return atlasOverview(atlas);
  const title = `${error[0].toUpperCase()}${error.slice(1)}.`;
  return {
    node: [
      make("h1", { class: "visually-hidden" }, "Atlas"),
      empty(title, make("p", { class: "hint" }, coded(hint))),
    ],
  };
}

// Commands stand between backticks, as on the command line.
function coded(text) {
  return text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));
}

async function page(name) {
  return atlasHead(await request(`atlas/${name}`));
}
