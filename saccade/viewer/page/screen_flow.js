// The graph of one prediction: tokens below, heads at layer x position, the prediction above.

import { dotted, make, panel } from "./dom.js";
import { request, isOffline } from "./api.js";
import { debounced, empty, asyncView } from "./async_view.js";
import { flowPicture } from "./flow_picture.js";
import { percent, signed } from "./number_format.js";
import { predictedTokens } from "./chosen_tokens.js";
import { promptBox } from "./prompt_box.js";
import { effectQuestion, readingQuestion } from "./questions.js";
import { setState } from "./state.js";
import { term } from "./tooltip.js";

const THRESHOLDS = [0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5];

export function flowScreen() {
  const box = promptBox({ hasLens: false }),
    tokens = asyncView("flow-tokens"),
    slider = thresholdSlider(),
    picture = asyncView("flow", { waiting: "Following the prediction back through the heads…" });
  const graph = panel(
    null,
    make("div", { class: "panel-head" }, make("h2", {}, "Flow to the prediction"), slider),
    picture,
  );
  const node = make(
    "div",
    { class: "screen screen-flow" },
    make("h1", { class: "visually-hidden" }, "Flow"),
    box,
    panel(null, tokens),
    graph,
  );
  const update = (state) => {
    box.update(state);
    slider.update(state);
    tokens.parentElement.hidden = !state.text;
    if (!state.text) {
      picture.clear();
      picture.append(empty("Type a text to follow a prediction back to its tokens."));
      return;
    }
    const plain = readingQuestion({ ...state, token: "", against: "" });
    tokens.querySelector(".predicted-tokens")?.update(state);
    tokens.fill(JSON.stringify(plain), async () => predictedTokens(await request("reading", plain)));
    const question = { ...effectQuestion(state), threshold: thresholdOf(state) };
    picture.fill(JSON.stringify(question), async () => drawn(await request("flow", question)));
  };
  return { node, update };
}

function thresholdOf({ threshold }) {
  const asked = Number(threshold);
  return THRESHOLDS.includes(asked) ? asked : 0.12;
}

function thresholdSlider() {
  const shown = make("output", {}),
    later = debounced((threshold) => setState({ threshold: String(threshold) }), 150);
  const at = () => THRESHOLDS[Number(range.value)];
  const show = () => shown.replaceChildren(percent(at(), 0));
  const range = make("input", {
    type: "range",
    min: 0,
    max: THRESHOLDS.length - 1,
    step: 1,
    disabled: isOffline(),
    "aria-label": "threshold",
    oninput: () => {
      show();
      later(at());
    },
  });
  const node = make(
    "label",
    { class: "inline slide" },
    term("threshold", "edges below this share of the largest edge to the prediction are left out"),
    range,
    shown,
  );
  node.update = (state) => {
    range.value = THRESHOLDS.indexOf(thresholdOf(state));
    show();
  };
  return node;
}

function drawn(flow) {
  const other = flow.against === null ? "the mean logit" : dotted(flow.against);
  const open = ({ layer, head, position }) =>
    setState({ screen: "head", head: `${layer}.${head}`, at: String(position) }, { isStep: true });
  if (!flow.nodes.length) return empty("No edge is above the threshold.");
  return [
    flowPicture(flow, open),
    make(
      "p",
      { class: "note" },
      `Logit of ${dotted(flow.token)}, against ${other}. The edges to the prediction keep `,
      make("b", {}, percent(flow.kept, 0)),
      " of what all heads give directly (absolute values). ",
      flow.agreement === null
        ? null
        : `Edges are attributions, at first order; over the heads shown they correlate ${signed(flow.agreement)} with the exact effects. `,
      "Blue raises the logit, brown lowers it. Point at a head or an edge to read it.",
    ),
  ];
}
