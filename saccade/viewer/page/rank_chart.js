// Pinned tokens: the rank of each in the vocabulary, layer by layer, at one position.

import { columnNames, dotted, make } from "./dom.js";
import { request, isOffline } from "./api.js";
import { lineColour } from "./colours.js";
import { percent, whole } from "./number_format.js";
import { lineChart } from "./line_chart.js";
import { setState } from "./state.js";
import { getStatus } from "./status.js";

export async function rankChart(state, question) {
  const pins = state.pins ? state.pins.split("|") : [],
    controls = pinControls(state, pins);
  if (!pins.length)
    return [
      make("h2", {}, "Pinned tokens"),
      controls,
      make("p", { class: "note" }, "Pin a token to follow its rank through the layers."),
    ];
  const tokens = (await request("positions", { ...question, first: 0, count: 32 })).tokens;
  const at = Number(state.at) < 0 ? tokens.length + Number(state.at) : Number(state.at);
  const found = await request("ranks", { ...question, tokens: pins, first: at, count: 1 });
  const series = found.tokens.map((token) => ({
    name: dotted(token.text),
    points: [
      ...found.layers.map((_, index) => [index, token.ranks[index][0] + 1]),
      [found.layers.length, token.final.ranks[0] + 1],
    ],
  }));
  return [
    make(
      "h2",
      {},
      "Pinned tokens, after ",
      make("span", { class: "token" }, dotted(tokens[at])),
      ` (token ${at})`,
    ),
    controls,
    lineChart({
      series,
      x: layerAxis(found.layers),
      y: rankAxis(),
      title: `Rank of ${pins.join(", ")} by layer`,
      height: 260,
    }),
    rankTable(found),
  ];
}

function layerAxis(layers) {
  const n = layers.length,
    step = n > 16 ? 5 : 1;
  return {
    ticks: [...layers.keys()].filter((at) => at % step === 0).concat(n),
    text: (at) => (at === n ? "out" : String(layers[at] ?? "")),
    scale: (at) => at / n,
    name: "",
  };
}

// Logarithmic; the first rank is at the top.
function rankAxis() {
  const most = getStatus()?.model?.d_vocab || 50000,
    powers = Array.from({ length: Math.ceil(Math.log10(most)) }, (_, power) => 10 ** power);
  return {
    ticks: powers,
    text: (value) => whole(value),
    scale: (value) => 1 - Math.log10(value) / Math.log10(most),
    name: "rank",
  };
}

function rankTable(found) {
  const rows = found.tokens.map((token, at) =>
    make(
      "tr",
      {},
      make(
        "th",
        { scope: "row", class: "token", style: { color: lineColour(at) } },
        dotted(token.text),
      ),
      make("td", { class: "number" }, whole(token.final.ranks[0] + 1)),
      make("td", { class: "number" }, percent(token.final.values[0])),
      make(
        "td",
        { class: "number" },
        String(found.layers[token.ranks.findIndex((ranks) => ranks[0] === 0)] ?? "never"),
      ),
    ),
  );
  const table = make(
    "table",
    { class: "metrics" },
    columnNames(["token", "#rank in the output", "#probability", "#first layer with rank 1"]),
    make("tbody", {}, rows),
  );
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Ranks in the output" },
    table,
  );
}

function pinControls(state, pins) {
  const chips = pins.map((token) =>
    make(
      "span",
      { class: "chip" },
      make("span", { class: "token" }, dotted(token)),
      isOffline()
        ? null
        : make(
            "button",
            {
              type: "button",
              "aria-label": `unpin ${dotted(token)}`,
              onclick: () => setState({ pins: pins.filter((each) => each !== token).join("|") }),
            },
            "×",
          ),
    ),
  );
  const box = make("input", {
    type: "text",
    size: 12,
    placeholder: "a token",
    "aria-label": "token to pin",
    spellcheck: "false",
  });
  const form = make(
    "form",
    {
      class: "inline",
      onsubmit: (event) => {
        event.preventDefault();
        if (box.value.trim())
          setState({ pins: [...new Set([...pins, box.value])].slice(-8).join("|") });
      },
    },
    box,
    make("button", { type: "submit", class: "quiet" }, "Pin"),
  );
  return make("div", { class: "controls chips" }, chips, isOffline() ? null : form);
}
