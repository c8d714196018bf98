// Positions x heads: what each head at each position gives to one prediction; exact where it is chosen.

import { dotted, make, panel } from "./dom.js";
import { request } from "./api.js";
import { scaleOf } from "./colours.js";
import { grid } from "./grid.js";
import { legend } from "./legend.js";
import { signed } from "./number_format.js";
import { fact } from "./head_card.js";
import { setState } from "./state.js";

const MOST = 48; // heads in the map: the rest has less at every position

export async function attributionGrid(state, question) {
  const found = await request("attribution", question),
    columns = largestHeads(found.rows);
  const value = (row, column) => columns[column].values[row],
    where = (row, column) => `head ${columns[column].name} at ${row} ${dotted(found.tokens[row])}`;
  const scale = scaleOf(
    columns.flatMap((head) => head.values),
    { signed: true, root: true },
  );
  const chosen = chosenCell(state),
    column = chosen ? columns.findIndex((head) => head.name === chosen.name) : -1;
  const frame = grid({
    rows: found.tokens.length,
    columns: columns.length,
    least: 40,
    most: 64,
    cellHeight: 26,
    left: innerWidth < 600 ? 74 : 108,
    title: "Attribution by position and head",
    cursor: column < 0 ? null : { row: chosen.at, column },
    scale,
    cell: (row, at) => {
      const here = value(row, at);
      return { value: here, text: Math.abs(here) < 0.005 ? "" : signed(here) };
    },
    rowLabel: (row) => `${dotted(found.tokens[row])} ${row}`,
    columnLabel: (at) => columns[at].name,
    label: (row, at) => `${where(row, at)}: ${signed(value(row, at), 3)} logits`,
    onchoose: (row, at) => setState({ cell: `${columns[at].name}@${row}` }),
    tip: (row, at) => [
      make("b", {}, where(row, at)),
      make("p", { class: "number" }, `${signed(value(row, at), 3)} logits`),
    ],
  });
  frame.classList.add("tall");
  return [
    make(
      "div",
      { class: "picture" },
      frame,
      legend(scale, (each) => signed(each), "logits"),
    ),
    make("p", { class: "note" }, note(found, columns.length)),
  ];
}

function note(found, n) {
  const other = found.against === null ? "the mean logit" : dotted(found.against),
    agreement =
      found.correlation === null
        ? ""
        : ` Correlation with the exact effect over the ${found.checked.length} largest: ${signed(found.correlation)}.`;
  return (
    `Attribution to the logit of ${dotted(found.token)}, against ${other}: gradient times (activation minus its ` +
    `replacement); exact at the last position. The ${n} heads with the largest values, in order of depth.${agreement} ` +
    "Choose a cell to measure it."
  );
}

// The columns: heads with the largest values at any position, in order of depth.
function largestHeads(rows) {
  const heads = rows.flatMap(({ layer, values }) =>
    values[0].map((_, head) => {
      const own = values.map((row) => row[head]);
      return { name: `${layer}.${head}`, values: own, most: Math.max(...own.map(Math.abs)) };
    }),
  );
  const least = heads.map((head) => head.most).sort((a, b) => b - a)[MOST - 1] ?? 0;
  return heads.filter((head) => head.most >= least);
}

// "23.3@4" -> {layer: 23, head: 3, at: 4, name: "23.3"}; anything else -> null.
export function chosenCell({ cell }) {
  const found = /^((\d+)\.(\d+))@(\d+)$/.exec(cell);
  return (
    found && {
      name: found[1],
      layer: Number(found[2]),
      head: Number(found[3]),
      at: Number(found[4]),
    }
  );
}

// The measured effect of the chosen cell.
export async function cellPanel(state, question) {
  const { layer, head, at, name } = chosenCell(state);
  const found = await request("cell", { ...question, layer, head, at }),
    other = found.against === null ? "the mean logit" : dotted(found.against);
  const open = () => setState({ screen: "head", head: name, at: String(at) }, { isStep: true });
  return panel(
    `Head ${name} at token ${at}, measured`,
    make(
      "dl",
      { class: "facts" },
      fact(
        `effect on ${dotted(found.token)}`,
        `fall of (logit of ${dotted(found.token)} − ${other}) after token ${found.position} when the head is replaced at token ${at} only, in logits`,
        `${signed(found.on_token, 3)} logits`,
      ),
      fact(
        "effect",
        `effect: KL of the prediction after token ${found.position} with the head from that with its replacement at token ${at} only, in nats`,
        `${found.kl.toFixed(3)} nats`,
      ),
    ),
    make("button", { type: "button", class: "quiet", onclick: open }, "Open this head there"),
  );
}
