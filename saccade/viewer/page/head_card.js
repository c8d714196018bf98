// One head: what it does (its effect), and its roles.

import { dotted, make, panel } from "./dom.js";
import { request } from "./api.js";
import { fixed, signed } from "./number_format.js";
import { tokenList } from "./token_list.js";
import { term } from "./tooltip.js";
import { replacedBy } from "./measures.js";
import { nameOf } from "./heat_map.js";

export function fact(name, definition, value) {
  return make("div", {}, make("dt", {}, term(name, definition)), make("dd", {}, value));
}

export function section(title, note, ...children) {
  return make(
    "section",
    { class: `face ${title.toLowerCase()}` },
    make("h2", {}, title, make("small", {}, ` ${note}`)),
    children,
  );
}

// What the part does: its effect on the prediction, measured.
export function doesSection(reading, { effect }) {
  if (!effect) return null;
  const token = dotted(reading.target.text),
    other = reading.against ? dotted(reading.against.text) : "the mean logit",
    by = replacedBy(reading),
    later = effect.direct === null ? null : effect.on_token - effect.direct;
  const inLogits = (value) => `${signed(value, 3)} logits`;
  return section(
    "Does",
    "measured: the prediction with it and without it",
    make(
      "dl",
      { class: "facts" },
      fact(
        "effect",
        `effect: KL of the prediction with the head from that with ${by}, in nats`,
        `${fixed(effect.kl, 3)} nats`,
      ),
      fact(
        `effect on ${token}`,
        `fall of (logit of ${token} − ${other}) when the head is replaced by ${by}, in logits`,
        inLogits(effect.on_token),
      ),
      later === null
        ? null
        : [
            fact(
              "direct",
              `direct part of the effect on ${token}: what the head adds to the final state above ${by}, times the ` +
                `direction of (logit of ${token} − ${other}), the final norm at the scale it has, in logits`,
              inLogits(effect.direct),
            ),
            fact(
              "through later layers",
              "effect on the token minus its direct part: what later layers make of the head, in logits",
              inLogits(later),
            ),
          ],
    ),
    make(
      "div",
      { class: "lens-tokens" },
      ...[
        ["promotes", effect.promotes, "higher"],
        ["suppresses", effect.suppresses, "lower"],
      ].map(([name, tokens, kind]) =>
        tokenList(tokens, {
          kind,
          format: (value) => signed(value, 3),
          title: `${name} (change of log-probability, nats)`,
        }),
      ),
    ),
  );
}

// Scores of the head for each role, and its rank among all heads.
export async function rolesPanel({ layer, head }) {
  const roles = await request("roles");
  const own = roles.heads.find((each) => each.layer === layer && each.head === head);
  if (!own) return null;
  const names = Object.keys(own).filter((name) => name !== "layer" && name !== "head");
  const rows = names.map((name) => {
    const better = roles.heads.filter((each) => each[name] > own[name]).length,
      most = Math.max(...roles.heads.map((each) => Math.abs(each[name] ?? 0)), 1e-9);
    return make(
      "tr",
      { "data-role": name },
      make("th", { scope: "row" }, name),
      make(
        "td",
        {},
        make(
          "span",
          { class: "meter", "aria-hidden": "true" },
          make("span", { style: { width: `${(100 * Math.max(0, own[name] ?? 0)) / most}%` } }),
        ),
      ),
      make("td", { class: "number" }, fixed(own[name])),
      make(
        "td",
        { class: "number soft" },
        own[name] === null ? "" : `${better + 1} of ${roles.heads.length}`,
      ),
    );
  });
  return panel(
    "Roles",
    make(
      "table",
      { class: "roles" },
      make(
        "thead",
        { class: "visually-hidden" },
        make(
          "tr",
          {},
          ["role", "share of the largest", "score", "rank"].map((name) =>
            make("th", { scope: "col" }, name),
          ),
        ),
      ),
      make("tbody", {}, rows),
    ),
    make(
      "p",
      { class: "note" },
      `Scores of head ${nameOf({ layer, head })} on generated texts, and its rank among all heads.`,
    ),
  );
}
