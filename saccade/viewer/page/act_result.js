// The predictions of the model before and after the changes.

import { dotted, make, panel } from "./dom.js";
import { fixed, percent, signed, whole } from "./number_format.js";
import { movedChart } from "./moved_chart.js";

export function drawResult(found) {
  const { token } = found,
    most = Math.max(...[...found.before, ...found.after].map((each) => each.value));
  const list = (title, tokens) =>
    panel(
      null,
      make("h2", {}, title),
      make(
        "ol",
        { class: "predicted" },
        tokens.map((each) =>
          make(
            "li",
            { class: each.id === token.id ? "watched" : "" },
            make("span", { class: "bar", style: { width: `${(100 * each.value) / most}%` } }),
            make("span", { class: "token" }, dotted(each.text)),
            make("span", { class: "number" }, percent(each.value)),
          ),
        ),
      ),
    );
  return [
    make("div", { class: "two" }, list("Before", found.before), list("After", found.after)),
    make(
      "dl",
      { class: "facts wide" },
      fact(
        make("span", { class: "token" }, dotted(token.text)),
        `${percent(token.before)} → ${percent(token.after)}`,
      ),
      fact("rank", `${whole(token.rank_before + 1)} → ${whole(token.rank_after + 1)}`),
      fact("KL(before || after)", `${fixed(found.kl, 3)} nats`),
      fact(
        "predicted by the lens vs measured",
        found.agreement === null ? "–" : `${signed(found.agreement)} correlation`,
      ),
      fact("changes", found.changes.join(", ")),
    ),
    found.continuation
      ? panel(
          "Continuation",
          make(
            "div",
            { class: "two" },
            make("div", { class: "continuation" }, make("h3", {}, "before"), found.continuation),
            make(
              "div",
              { class: "continuation" },
              make("h3", {}, "after"),
              found.continuation_after ?? "",
            ),
          ),
        )
      : null,
    movedChart(found),
  ];
}

function fact(name, value) {
  return make("div", {}, make("dt", {}, name), make("dd", {}, value));
}
