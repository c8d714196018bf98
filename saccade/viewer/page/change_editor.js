// The list of changes of the model: one row each; every field takes effect at once.

import { choice, make } from "./dom.js";
import { debounced } from "./async_view.js";
import { getStatus } from "./status.js";

const KINDS = [
  ["ablate", "ablate"],
  ["scale", "scale"],
  ["patch", "patch"],
  ["inject", "inject"],
];
const FRESH = {
  ablate: { by: "zero" },
  scale: { factor: 2 },
  patch: { source: "The Colosseum is located in the city of", positions: [-1] },
  inject: { memory: "France", strength: 2, form: "unembedding" },
};
const PAUSE = 350;

export function changeEditor(changes, onchange) {
  const set = (at, change) =>
    onchange(changes.map((each, index) => (index === at ? change : each)));
  const rows = changes.map((change, at) =>
    changeRow(change, {
      set: (next) => set(at, next),
      remove: () => onchange(changes.filter((_, index) => index !== at)),
      at,
    }),
  );
  const last = changes[changes.length - 1];
  const add = make(
    "button",
    {
      type: "button",
      class: "quiet",
      disabled: changes.length >= 16,
      onclick: () =>
        onchange([...changes, fresh("ablate", last ?? { layer: firstLayer(), head: 0 })]),
    },
    changes.length ? "Add another change" : "Add a change",
  );
  return make("div", { class: "changes" }, rows, add);
}

function firstLayer() {
  const layers = getStatus()?.model?.layers ?? [];
  return layers[layers.length - 1]?.layer ?? 0;
}

function fresh(kind, { layer, head }) {
  return { kind, layer, head: head ?? (kind === "inject" ? null : 0), ...FRESH[kind] };
}

function changeRow(change, { set, remove, at }) {
  const kind = choice(
    KINDS,
    change.kind,
    (next) => set(fresh(next, change)),
    `what change ${at + 1} does`,
  );
  return make(
    "fieldset",
    { class: "change", "data-kind": change.kind },
    make("legend", { class: "visually-hidden" }, `change ${at + 1}`),
    kind,
    siteFields(change, set),
    fieldsOf(change, set),
    make(
      "button",
      {
        type: "button",
        class: "quiet remove",
        "aria-label": `remove change ${at + 1}`,
        onclick: remove,
      },
      "×",
    ),
  );
}

function siteFields(change, set) {
  const layers = getStatus()?.model?.layers ?? [
    { layer: change.layer, n_heads: (change.head ?? 0) + 1 },
  ];
  const layer = choice(
    layers.map((each) => [String(each.layer), String(each.layer)]),
    String(change.layer),
    (value) => set({ ...change, layer: Number(value) }),
    "layer",
  );
  const width = layers.find((each) => each.layer === change.layer)?.n_heads ?? 1;
  const heads = Array.from({ length: width }, (_, head) => [String(head), String(head)]);
  if (change.kind === "inject") heads.unshift(["", "stream"]);
  const head = choice(
    heads,
    change.head === null ? "" : String(change.head),
    (value) =>
      set({
        ...change,
        head: value === "" ? null : Number(value),
        ...(value === "" && change.kind === "inject" ? { form: "unembedding" } : {}),
      }),
    "head",
  );
  return [
    make("label", { class: "inline" }, "layer ", layer),
    make("label", { class: "inline" }, "head ", head),
  ];
}

function fieldsOf(change, set) {
  if (change.kind === "ablate")
    return make(
      "label",
      { class: "inline" },
      "by ",
      choice(
        [
          ["zero", "zero"],
          ["mean", "its mean"],
          ["resample", "another position"],
        ],
        change.by,
        (by) => set({ ...change, by }),
        "by",
      ),
    );
  if (change.kind === "scale")
    return slider("factor", change, set, { min: -2, max: 5, step: 0.25 });
  if (change.kind === "patch") return textField("from", "source", change, set, 34);
  return [
    textField("memory", "memory", change, set, 14),
    slider("strength", change, set, { min: -5, max: 10, step: 0.25 }),
    make(
      "label",
      { class: "inline" },
      "as ",
      choice(
        [
          ["unembedding", "unembedding"],
          ...(change.head === null ? [] : [["lens", "lens"]]),
          ["text", "text"],
        ],
        change.form,
        (form) => set({ ...change, form }),
        "as",
      ),
    ),
  ];
}

// The number follows the slider at once; the model runs when the slider rests.
function slider(key, change, set, limits) {
  const later = debounced((value) => set({ ...change, [key]: value }), PAUSE);
  const output = make("output", { class: "number" }, String(change[key]));
  const range = make("input", {
    type: "range",
    ...limits,
    "aria-label": key,
    oninput: () => {
      output.textContent = range.value;
      later(Number(range.value));
    },
  });
  range.value = change[key];
  return make("label", { class: "inline slide" }, `${key} `, range, output);
}

function textField(label, key, change, set, size) {
  const later = debounced((value) => value.trim() && set({ ...change, [key]: value }), 700);
  const box = make("input", {
    type: "text",
    size,
    value: change[key],
    "aria-label": label,
    spellcheck: "false",
    oninput: () => later(box.value),
    onchange: () => later.now(box.value),
  });
  return make("label", { class: "inline wide" }, `${label} `, box);
}
