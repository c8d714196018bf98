// The atlas: what every head does, knows and looks at over a text. All heads, or the page of one.

import { make } from "./dom.js";
import { hasAnswer, request, siteFile } from "./api.js";
import { asyncView, empty } from "./async_view.js";
import { atlasHead } from "./atlas_head.js";
import { atlasOverview } from "./atlas_overview.js";
import { getState, setState } from "./state.js";
import { isReady } from "./status.js";

export function atlasScreen() {
  const main = asyncView("atlas", { waiting: "Reading the atlas…" }),
    bar = make("div", { class: "atlas-bar" }, allHeads());
  const node = make("div", { class: "screen screen-atlas" }, bar, main);
  let shown = null; // what the view shows now
  return {
    node,
    update(state) {
      const name = /^\d+\.\d+$/.test(state.head) && hasAnswer(`atlas/${state.head}`, {}) ? state.head : "";
      bar.hidden = !name || (!siteFile() && !hasAnswer("atlas", {}));
      const key = `${name} ${isReady()}`,
        draw = name ? () => page(name) : overview;
      if (shown?.key === key) shown.view.update?.(state);
      else {
        shown = null;
        main.fill(key, async () => {
          const view = await draw();
          shown = { key, view };
          view.update?.(getState());
          return view.node;
        });
      }
    },
  };
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
  const node = empty(`${error[0].toUpperCase()}${error.slice(1)}.`, make("p", { class: "hint" }, coded(hint)));
  return { node: [make("h1", { class: "visually-hidden" }, "Atlas"), node] };
}

// Commands stand between backticks, as on the command line.
function coded(text) {
  return text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));
}

async function page(name) {
  return atlasHead(await request(`atlas/${name}`));
}
