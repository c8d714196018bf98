// The model writes: token by token, with the heads that promoted and opposed each.

import { dotted, make, panel } from "./dom.js";
import { request, isOffline } from "./api.js";
import { scaleOf } from "./colours.js";
import { empty, asyncView, problem } from "./async_view.js";
import { heatMap, nameOf } from "./heat_map.js";
import { legend } from "./legend.js";
import { titleOf } from "./measures.js";
import { percent, signed } from "./number_format.js";
import { promptBox } from "./prompt_box.js";
import { isSampled, questionAt, samplingFields } from "./sampling.js";
import { changesOf, getState, setState } from "./state.js";
import { tokenList } from "./token_list.js";

const PACE = 700, // milliseconds between two tokens
  MOST = 64, // tokens, as on the server
  SHOWN = 8, // heads in each list
  HOTTEST = 2, // temperature, as on the server
  LAST_SEED = 2 ** 31 - 1;

export function generateScreen() {
  const box = promptBox({ hasLens: false, more: { step: "" } }),
    text = asyncView("generated", { waiting: "Writing…" }),
    detail = asyncView("generated-heads");
  const play = button("Play", () => (player.timer ? pause() : start()));
  const range = make("input", {
    type: "range",
    min: 0,
    max: 0,
    "aria-label": "token",
    oninput: () => {
      pause();
      go(Number(range.value));
    },
  });
  const player = { timer: 0, known: 0, of: "" };
  const stepBy = (by) => {
    pause();
    go(Math.max(0, Math.min(MOST - 1, stepOf(getState()) + by)));
  };
  const controls = make(
    "div",
    { class: "controls player" },
    button("‹", () => stepBy(-1), "previous token"),
    play,
    button("›", () => stepBy(1), "next token"),
    range,
  );
  const sampling = make("div", { class: "controls" });
  const node = make(
    "div",
    { class: "screen screen-generate" },
    make("h1", { class: "visually-hidden" }, "Generate"),
    box,
    panel("The model writes", sampling, text, controls),
    detail,
  );

  function pause() {
    clearTimeout(player.timer);
    player.timer = 0;
    play.textContent = "Play";
  }

  function start() {
    play.textContent = "Pause";
    player.timer = setTimeout(advance, PACE);
  }

  async function advance() {
    const step = stepOf(getState());
    const here = await request("generate", questionAt(getState(), step)).catch(() => null);
    if (!player.timer) return; // paused while the token was written
    if (!here || here.is_end || step === MOST - 1 || !node.isConnected) {
      pause();
      return;
    }
    go(step + 1);
    await request("generate", questionAt(getState(), step + 1)).catch(() => null);
    if (player.timer) player.timer = setTimeout(advance, PACE);
  }

  function update(state) {
    box.update(state);
    sampling.hidden = controls.hidden = detail.hidden = !state.text;
    if (!sampling.contains(document.activeElement)) sampling.replaceChildren(...samplingFields(state));
    if (!state.text) {
      text.clear();
      text.append(empty("Type a text for the model to continue."));
      return;
    }
    const step = stepOf(state),
      whole = JSON.stringify(questionAt(state, 0));
    if (player.of !== whole) Object.assign(player, { of: whole, known: 0 });
    player.known = Math.max(player.known, step);
    Object.assign(range, { max: player.known, value: step });
    text.fill(JSON.stringify([whole, state.changes, player.known, step]), () =>
      written(state, player.known, step),
    );
    detail.fill(JSON.stringify([whole, step]), async () =>
      headsOf(await request("generate", questionAt(state, step)).catch(() => null)),
    );
  }
  return { node, update };
}

function button(name, onclick, label = null) {
  return make("button", { type: "button", class: "quiet", "aria-label": label, onclick }, name);
}

function go(step) {
  setState({ step: step ? String(step) : "" });
}

function stepOf({ step }) {
  return /^\d+$/.test(step) ? Math.min(MOST - 1, Number(step)) : 0;
}

// The prompt, and the tokens written so far; the chosen one is marked.
async function written(state, known, chosen) {
  const found = [];
  for (let at = 0; at <= known; at += 1) {
    try {
      found.push(await request("generate", questionAt(state, at)));
    } catch (error) {
      if (!found.length || chosen >= found.length) return problem(error);
      break;
    }
    if (found[at].is_end) break;
  }
  const tokens = found.map(({ token, is_end: isEnd }, at) =>
    make(
      "button",
      {
        type: "button",
        class: "token",
        "aria-pressed": String(at === chosen),
        title: `${percent(token.value)}${isEnd ? ", the end of the text" : ""}`,
        onclick: () => go(at),
      },
      dotted(token.text),
    ),
  );
  return [
    make("p", { class: "running" }, make("span", { class: "soft" }, state.text), tokens),
    changesOf(state).length
      ? make("p", { class: "note" }, "Written by the unchanged model, without the applied edit.")
      : null,
    isOffline()
      ? null
      : make(
          "p",
          { class: "note" },
          isSampled(state)
            ? "Drawn at the temperature; another seed draws another text."
            : "The likeliest token each time.",
        ),
  ];
}

function headsOf(found) {
  if (!found) return null; // the text above shows the error
  const { heads, token } = found,
    scale = scaleOf(
      heads.map((head) => head.effect),
      { signed: true, root: true },
    );
  const open = (name) =>
    setState({ screen: "head", head: name, token: "", against: "" }, { isStep: true });
  const label = (head) => `${titleOf(head)}: ${signed(head.effect, 3)} logits`;
  const list = (title, sign, kind) =>
    tokenList(
      heads
        .filter((head) => sign * head.effect > 0)
        .sort((a, b) => sign * (b.effect - a.effect))
        .slice(0, SHOWN)
        .map((head) => ({ text: nameOf(head), value: head.effect })),
      { title, kind, format: (value) => signed(value, 3) },
    );
  const map = heatMap({
    cells: heads.map((head) => ({
      ...head,
      value: head.effect,
      isWeak: false,
      label: label(head),
    })),
    scale,
    title: `Effect of each head on ${dotted(token.text)}`,
    onchoose: isOffline() ? () => {} : open,
    tip: (cell) => [make("b", {}, titleOf(cell)), make("p", {}, `${signed(cell.effect, 3)} logits`)],
  });
  return make(
    "div",
    { class: "below" },
    panel(
      null,
      make("h2", {}, "Heads that wrote ", make("span", { class: "token" }, dotted(token.text))),
      make(
        "p",
        { class: "note" },
        `Its probability was ${percent(token.value)}. Effect: fall of its logit, against the mean logit, with the head replaced by its mean.`,
      ),
      make("div", { class: "picture" }, map, legend(scale, (v) => signed(v), "logits")),
    ),
    panel(null, make("div", { class: "two" }, list("promoted it", 1, "higher"), list("opposed it", -1, "lower"))),
  );
}
